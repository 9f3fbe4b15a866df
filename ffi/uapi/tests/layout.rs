//! The layouts and numbers of this crate against those that a C compiler makes of the header.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::mem::offset_of;
use std::path::{Path, PathBuf};
use std::process::Command;

use ghost_uapi::{request, sys};

/// `(name, offset, size)` of each structure and its fields; the sizes of fields must add up, so that
/// none is missing and there is no padding.
macro_rules! layout {
    ($($type:ident { $($field:ident)* })*) => {{
        let mut all = Vec::new();
        $(
            let value = sys::$type::default();
            let fields = [$((stringify!($field), offset_of!(sys::$type, $field), size_of_val(&value.$field))),*];
            let sum: usize = fields.iter().map(|(_, _, size)| size).sum();
            assert_eq!(sum, size_of::<sys::$type>(), "a field of {} is missing, or it has padding", stringify!($type));
            all.push((stringify!($type), size_of::<sys::$type>(), fields.to_vec()));
        )*
        all
    }};
}

fn header() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../driver-patches/include/uapi/ghost.h")
}

/// What a C program prints whose `main` is `body`: lines of a name and numbers.
fn c(body: &str) -> BTreeMap<String, Vec<u64>> {
    let dir = tempfile::tempdir().unwrap();
    let (source, program) = (dir.path().join("print.c"), dir.path().join("print"));
    let text = format!(
        "#include <stddef.h>\n#include <stdio.h>\n#include \"{}\"\nint main(void)\n{{\n{body}\treturn 0;\n}}\n",
        header().display()
    );
    std::fs::write(&source, text).unwrap();
    let cc = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o"];
    let mut compiler = Command::new("cc");
    let built = compiler.args(cc).arg(&program).arg(&source);
    assert!(
        built.status().unwrap().success(),
        "the header does not compile"
    );
    let printed = Command::new(&program).output().unwrap();
    let lines = String::from_utf8(printed.stdout).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let name = words.next().unwrap().to_owned();
        (name, words.map(|word| word.parse().unwrap()).collect())
    };
    lines.lines().map(line).collect()
}

#[test]
fn structures_lie_as_in_c() {
    let all = layout! {
    ghost_version {
        size flags abi hooks features gpus build driver
    }
    ghost_create {
        size flags parent id name reserved
    }
    ghost_delete {
        size flags id
    }
    ghost_limit {
        size flags id gpu set wrong weight max_us period_us memory_min memory_low memory_high
        memory_max
    }
    ghost_events {
        low high max fail
    }
    ghost_stat {
        size flags id gpu weight max_us period_us memory_min memory_low memory_high memory_max
        memory_current memory_managed memory_peak events events_local nr_periods nr_throttled
        throttled_us slice_us clients groups paused reserved
    }
    ghost_list {
        size flags what item_size after items count written
    }
    ghost_container {
        id parent name reserved
    }
    ghost_client {
        id container handle pid memory
    }
    ghost_group {
        id container gpu pid client handle slice_us paused reserved
    }
    ghost_gpu {
        id gpu reserved memory_total memory_charged
    }
    ghost_cgroup {
        id container
    }
    ghost_bind {
        size flags id cgroup_fd reserved
    }
    ghost_attach {
        size flags id pidfd reserved
    }
    ghost_pause {
        size flags id gpu reserved
    }
    ghost_lead {
        size flags lease_us
    }
    ghost_slice {
        size flags group slice_us
    }
    ghost_event {
        seq at_ns type_ pid gpu reserved container object value reserved2
    }
    ghost_test {
        size flags op gpu object value client status
    }
    };
    let known: BTreeSet<&str> = all.iter().map(|(name, ..)| *name).collect();
    let text = std::fs::read_to_string(header()).unwrap();
    let structs = text
        .lines()
        .filter_map(|line| line.strip_prefix("struct ")?.strip_suffix(" {"));
    assert_eq!(structs.collect::<BTreeSet<_>>(), known, "make sys.rs anew");
    let mut body = String::new();
    let mut wanted = BTreeMap::new();
    for (name, size, fields) in all {
        writeln!(body, "\tprintf(\"{name} %zu\\n\", sizeof(struct {name}));").unwrap();
        wanted.insert(name.to_owned(), vec![size as u64]);
        for (field, offset, size) in fields {
            let in_c = if field == "type_" { "type" } else { field };
            let member = format!("((struct {name} *)0)->{in_c}");
            writeln!(
                body,
                "\tprintf(\"{name}.{field} %zu %zu\\n\", offsetof(struct {name}, {in_c}), sizeof({member}));"
            )
            .unwrap();
            wanted.insert(format!("{name}.{field}"), vec![offset as u64, size as u64]);
        }
    }
    assert_eq!(c(&body), wanted);
    assert_eq!(
        size_of::<sys::ghost_event>(),
        sys::GHOST_EVENT_SIZE as usize
    );
}

#[test]
fn numbers_are_those_of_c() {
    let requests = [
        ("VERSION", request::VERSION),
        ("CREATE", request::CREATE),
        ("DELETE", request::DELETE),
        ("LIMIT", request::LIMIT),
        ("STAT", request::STAT),
        ("LIST", request::LIST),
        ("BIND", request::BIND),
        ("ATTACH", request::ATTACH),
        ("PAUSE", request::PAUSE),
        ("LEAD", request::LEAD),
        ("SLICE", request::SLICE),
        ("TEST", request::TEST),
    ];
    let mut wanted: BTreeMap<String, Vec<u64>> = requests
        .map(|(name, number)| (format!("GHOST_IOC_{name}"), vec![number]))
        .into();
    let sys = include_str!("../src/sys.rs");
    for line in sys
        .lines()
        .filter_map(|l| l.strip_prefix("pub const GHOST_"))
    {
        let (name, rest) = line.split_once(": u32 = ").expect(line);
        let value = rest.trim_end_matches(';').parse().expect(line);
        wanted.insert(format!("GHOST_{name}"), vec![value]);
    }
    let text = std::fs::read_to_string(header()).unwrap();
    let defined = text
        .lines()
        .filter_map(|line| line.strip_prefix("#define GHOST_"));
    let mut body = String::new();
    let mut names = BTreeSet::new();
    for define in defined {
        let name = define.split_whitespace().next().unwrap();
        // What is not a 32-bit number is written by hand.
        if ["DEVICE", "MAX"].contains(&name) {
            continue;
        }
        let name = format!("GHOST_{name}");
        writeln!(
            body,
            "\tprintf(\"{name} %llu\\n\", (unsigned long long)({name}));"
        )
        .unwrap();
        names.insert(name);
    }
    assert_eq!(names, wanted.keys().cloned().collect(), "make sys.rs anew");
    assert_eq!(c(&body), wanted);
}
