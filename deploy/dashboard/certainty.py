"""Means with their uncertainty, as SQL.

Attempts at one task are not independent, so the interval of a mean comes from clusters: the linearised variance of a
ratio, Σ (sum of the cluster − mean × size of the cluster)² / n² × G / (G − 1) for G clusters, as survey statistics and
clustered standard errors have it (Cochran, Sampling Techniques, section 6.3). The factor is that of the normal
distribution, so for few clusters the interval is too narrow: pages fade what rests on fewer than ``FEW`` trajectories.

The interval of a share is Wilson's (1927), so it stays in [0, 1] and has a width even where nothing or everything
failed. Its n is the effective number of observations, p (1 − p) / error², at most the observations; where the clusters
do not differ, so that the error is 0, it is the number of clusters.
"""

Z = 1.96
"""Half the width of a 95 % interval, in standard errors."""

FEW = 30
"""Number of observations below which a value is faded."""


_SIZE = "if(error > 0, least(centre * (1 - centre) / (error * error), toFloat64(observations)), toFloat64(clusters))"
_WILSON = f"""WITH {_SIZE} AS size,
     (centre * size + {Z * Z / 2:.4f}) / (size + {Z * Z:.4f}) AS middle,
     {Z} * sqrt(centre * (1 - centre) * size + {Z * Z / 4:.4f}) / (size + {Z * Z:.4f}) AS half
"""
"""Clause: the middle of Wilson's interval and half its width."""


def clustered_mean(rows: str, keys: str, mean: str, n: str, *, share: bool = False) -> str:
    """Returns a query for the mean of ``value`` by ``keys``, with its 95 % interval.

    ``rows`` is a query with the columns ``keys``, ``cluster`` (a number, as `trajectories` and `rewards` have it) and
    ``value``. The result has the columns ``keys``, ``mean``, ``low``, ``high``, ``n`` (observations) and ``clusters``;
    the interval is null for a single cluster. ``share``: whether all values are 0 or 1; the interval is then Wilson's.
    """
    each = ", ".join(f"any({key}) AS {key}" for key in keys.split(", "))
    clause, low, high = "", f"centre - {Z} * error", f"centre + {Z} * error"
    if share:
        # Both bounds are of rounding errors only. The functions ignore nulls, so these are kept by hand.
        clause = _WILSON
        low = "if(error IS NULL, NULL, greatest(0., least(centre, middle - half)))"
        high = "if(error IS NULL, NULL, least(1., greatest(centre, middle + half)))"
    # Rows are grouped by numbers, which takes a third of the time of grouping by texts.
    return f"""{clause}SELECT {keys}, centre AS {mean}, {low} AS low, {high} AS high,
       observations AS {n}, clusters
FROM (
    SELECT {keys}, {ratio("s", "m")} AS centre, sum(m) AS observations, count() AS clusters,
           if(clusters > 1, sqrt({variance("centre")}), NULL) AS error
    FROM (
        SELECT {each}, sum(value) AS s, count() AS m
        FROM (SELECT {keys}, value, cityHash64({keys}) AS number, cluster FROM (
{rows}
        )) GROUP BY number, cluster
    ) GROUP BY {keys}
)"""


def ratio(total: str, size: str) -> str:
    """Returns the mean over clusters with the columns ``total`` and ``size``."""
    return f"sum({total}) / sum({size})"


def variance(centre: str) -> str:
    """Returns the variance of the mean ``centre`` over clusters with the columns ``s`` and ``m``: sum and size."""
    return variance_of_sums(centre, "sum(s * s)", "sum(s * m)", "sum(m * m)", "sum(m)", "count()")


def variance_of_sums(centre: str, squares: str, products: str, sizes: str, observations: str, clusters: str) -> str:
    """Returns the same variance from sums over clusters: of s², s × m, m² and m, and their number."""
    spread = f"{squares} - 2 * {centre} * {products} + {centre} * {centre} * {sizes}"
    return f"greatest({spread}, 0) * {clusters} / ({clusters} - 1) / ({observations} * {observations})"
