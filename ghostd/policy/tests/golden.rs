//! The arithmetic against tables of whole numbers, which code in another language can read too.

use ghost_policy::{budget, share};

/// Rows of a table, after checking its columns.
fn rows<const N: usize>(table: &str, columns: [&str; N]) -> Vec<[i64; N]> {
    let mut lines = table.lines();
    assert_eq!(lines.next().unwrap(), columns.join(","));
    let row = |line: &str| {
        let cells: Vec<i64> = line.split(',').map(|cell| cell.parse().unwrap()).collect();
        cells.try_into().unwrap()
    };
    let rows: Vec<_> = lines.map(row).collect();
    assert!(rows.len() > 20);
    rows
}

#[test]
fn weights() {
    let columns = ["weight", "beyond", "counts"];
    for row @ [weight, beyond, counts] in rows(include_str!("../golden/weights.csv"), columns) {
        let got = share::weight(weight as u64, beyond == 1);
        assert_eq!(got, counts as u64, "{row:?}");
    }
}

#[test]
fn shares() {
    for row @ [whole, weight, sum, part] in rows(
        include_str!("../golden/shares.csv"),
        ["whole", "weight", "sum", "part"],
    ) {
        let got = share::part(whole as u64, weight as u64, sum as u64);
        assert_eq!(got, part as u64, "{row:?}");
    }
}

#[test]
fn slices() {
    for row @ [length, factor, groups, slice] in rows(
        include_str!("../golden/slices.csv"),
        ["length", "factor", "groups", "slice"],
    ) {
        let got = share::slice(length as u64, factor as u64, groups as u64);
        assert_eq!(got.0, slice as u64, "{row:?}");
    }
}

#[test]
fn budgets() {
    let columns = [
        "max",
        "level",
        "throttled",
        "periods",
        "used",
        "level_after",
        "throttled_after",
    ];
    for row @ [max, level, throttled, periods, used, after, throttled_after] in
        rows(include_str!("../golden/budgets.csv"), columns)
    {
        let level = budget::refill(level, max as u64, periods as u64) - used;
        assert_eq!(level, after, "{row:?}");
        let may_run = budget::may_run(level, max as u64, throttled == 1);
        assert_eq!(may_run, throttled_after == 0, "{row:?}");
    }
}
