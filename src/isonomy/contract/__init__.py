"""The contract of an algorithm as clauses that can be run on any algorithm.

`checks` and `recording` are the clauses, `running` and `world` what they are written with,
`engines` the engines that they run on, and `suite` runs all of them on one algorithm. The tests of
the package run the same clauses on every algorithm of the package.
"""
