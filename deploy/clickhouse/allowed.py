"""Allow lists of the embedded ClickHouse. Names that are not listed are refused."""

TABLE_FUNCTIONS = frozenset({
    "generate_series", "generateseries", "numbers", "numbers_mt", "primes", "sqlstandardvalues", "view", "zeros",
    "zeros_mt",
})  # fmt: skip
"""Table functions that generate their rows themselves, in lower case.

None of them parses a string argument as SQL. ``values``, ``generateRandom`` and ``null`` take the columns as text,
where ``ALIAS file(…)`` would be executed without being in the statement's syntax tree; ``viewExplain`` takes settings
as text.
"""

ENGINES = frozenset({
    "AggregatingMergeTree", "Atomic", "CoalescingMergeTree", "CollapsingMergeTree", "Join", "Log",
    "Memory", "MergeTree", "Null", "ReplacingMergeTree", "Set", "StripeLog", "SummingMergeTree", "TinyLog",
    "VersionedCollapsingMergeTree",
})  # fmt: skip
"""Engines of tables and databases that keep their data in the engine's own folder, or in memory.

Not ``Buffer``: it takes its target table as a string, and would read a path there as a file.
"""

INDEX_TYPES = frozenset({"bloom_filter", "minmax", "ngrambf_v1", "set", "tokenbf_v1", "vector_similarity"})
"""Types of secondary indexes. Not ``text``: its preprocessor is an expression."""

WRITE_SETTINGS = frozenset({
    "alter_sync", "async_insert", "async_insert_busy_timeout_ms", "data_type_default_nullable", "flatten_nested",
    "insert_deduplicate", "insert_deduplication_token", "insert_null_as_default", "insert_quorum",
    "input_format_allow_errors_num", "input_format_binary_read_json_as_string",
    "input_format_defaults_for_omitted_fields", "input_format_null_as_default", "input_format_parallel_parsing",
    "input_format_skip_unknown_fields", "input_format_with_names_use_header", "lightweight_deletes_sync",
    "mutations_sync", "wait_for_async_insert", "wait_for_async_insert_timeout",
})  # fmt: skip
"""Settings of a request or statement that a writer may use in addition to those of a read. None of them is parsed as
SQL, names a file or selects a schema."""

TABLE_SETTINGS = frozenset({
    "allow_nullable_key", "deduplicate_merge_projection_mode", "enable_block_number_column",
    "enable_block_offset_column", "index_granularity", "index_granularity_bytes", "merge_with_ttl_timeout",
    "min_bytes_for_wide_part", "min_rows_for_wide_part", "non_replicated_deduplication_window",
    "old_parts_lifetime", "parts_to_delay_insert", "parts_to_throw_insert", "ttl_only_drop_parts",
})  # fmt: skip
"""Settings of a table, without those that select where its data is stored."""

EXPLAIN_SETTINGS = frozenset({
    "actions", "compact", "description", "distributed", "dump_ast", "dump_passes", "dump_tree", "graph", "header",
    "indexes", "json", "keep_logical_steps", "oneline", "optimize", "passes", "pretty", "projections",
    "run_passes", "run_query_tree_passes", "sorting",
})  # fmt: skip
"""Settings of ``EXPLAIN``."""

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
"""Allowed functions of the category ``Other``; the rest read files, certificates, ports or HTTP headers."""
