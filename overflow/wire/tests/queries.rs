//! What the CUDA runtimes 12.9 and 13.5 ask `cuGetProcAddress` for: `queries.txt`, a line each with
//! name, version and flags (2: the per-thread form), as seen on a real driver.

use ghost_wire::api::{KNOWN, find};

#[test]
fn each_query_of_the_runtimes_has_an_answer() {
    let mut asked = 0;
    for line in include_str!("queries.txt").lines() {
        let [name, version, flags] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line:?} is no query");
        };
        let version: u32 = version.parse().unwrap();
        let (_, entry) = find(name, version, flags == "2").unwrap_or_else(|| panic!("{line}"));
        assert!(
            entry.name == name && entry.since <= version,
            "{line}: {entry:?}"
        );
        asked += 1;
    }
    assert!(asked > 450);
    assert!(find("cuInit", KNOWN, false).is_some());
}
