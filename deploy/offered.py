"""What the embedded ClickHouse offers: lists by name. What is on none of them is refused."""

TABLE_FUNCTIONS = frozenset({
    "generate_series", "generaterandom", "generateseries", "null", "numbers", "numbers_mt", "primes",
    "sqlstandardvalues", "values", "view", "viewexplain", "zeros", "zeros_mt",
})  # fmt: skip
"""Table functions that make their rows themselves, in lower case."""

ENGINES = frozenset({
    "AggregatingMergeTree", "Atomic", "Buffer", "CoalescingMergeTree", "CollapsingMergeTree", "Join", "Log",
    "Memory", "MergeTree", "Null", "ReplacingMergeTree", "Set", "StripeLog", "SummingMergeTree", "TinyLog",
    "VersionedCollapsingMergeTree",
})  # fmt: skip
"""Engines of tables and databases that keep their data in the engine's own folder, or in memory."""

SYSTEM_TABLES = frozenset({
    "build_options", "collations", "columns", "contributors", "data_skipping_indices", "data_type_families",
    "databases", "formats", "functions", "keywords", "merge_tree_settings", "metrics", "numbers", "numbers_mt",
    "one", "parts", "parts_columns", "projections", "settings", "table_engines", "table_functions", "tables",
    "time_zones", "zeros", "zeros_mt",
})  # fmt: skip
"""Tables of ``system`` that describe schema and engine; others show statements and settings of other clients."""

FUNCTION_CATEGORIES = frozenset({
    "Aggregate Functions", "Arithmetic", "Arrays", "Bit", "Bitmap", "Comparison", "Conditional",
    "Dates and Times", "Distance", "Encoding", "Encryption", "Financial", "Geo", "Geo Polygon", "Hash",
    "IP Address", "JSON", "Logical", "Map", "Mathematical", "Null", "NumericIndexedVector", "QBit",
    "Random Number", "Rounding", "String", "String Replacement", "String Search", "String Splitting",
    "Time Series", "Time Window", "Tuple", "Type Conversion", "URL", "UUID",
})  # fmt: skip
"""Categories of ``system.functions`` that compute from their arguments alone."""

OTHER_FUNCTIONS = frozenset({
    "bar", "blockNumber", "blockSize", "byteSize", "connectionId", "countDigits", "currentDatabase",
    "currentQueryID", "currentSchemas", "currentUser", "defaultValueOfArgumentType", "defaultValueOfTypeName",
    "digits", "displayName", "dumpColumnStructure", "errorCodeToName", "finalizeAggregation", "flipCoordinates",
    "formatQuery", "formatQueryOrNull", "formatQuerySingleLine", "formatQuerySingleLineOrNull",
    "formatReadableDecimalSize", "formatReadableQuantity", "formatReadableSize", "formatReadableTimeDelta",
    "getMaxTableNameLengthForDatabase", "getSetting", "getSettingOrDefault", "getSizeOfEnumType",
    "getSubcolumn", "hostName", "identity", "ignore", "indexHint", "initializeAggregation", "initialQueryID",
    "isConstant", "isDecimalOverflow", "lowCardinalityIndices", "lowCardinalityKeys", "MACNumToString",
    "MACStringToNum", "MACStringToOUI", "materialize", "minSampleSizeContinuous", "minSampleSizeConversion",
    "neighbor", "normalizedQueryHash", "normalizedQueryHashKeepNames", "normalizeQuery",
    "normalizeQueryKeepNames", "parseISO8601Duration", "parseReadableSize", "parseReadableSizeOrNull",
    "parseReadableSizeOrZero", "parseTimeDelta", "queryID", "revision", "rowNumberInAllBlocks",
    "rowNumberInBlock", "runningAccumulate", "runningConcurrency", "runningDifference",
    "runningDifferenceStartingWithFirstValue", "throwIf", "toColumnTypeName", "toTypeName", "transform",
    "uptime", "variantElement", "variantType", "version", "visibleWidth",
})  # fmt: skip
"""Functions of the category ``Other`` that are offered; others read files, certificates, ports or HTTP headers."""
