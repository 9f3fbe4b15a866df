//! What Ghost costs the driver, in instructions that QEMU counts: they are the same on every machine.

use std::error::Error;
use std::fs;
use std::time::Duration;

use ghost_vm::Driver;
use tempfile::NamedTempFile;

/// A line of what `count/count.c` writes.
struct Counted {
    /// `request` or `function`.
    kind: String,
    /// The index that `guest/test_cost.c` gives to it.
    index: usize,
    times: u64,
    instructions: u64,
    /// Of a request: those within Ghost's functions. Of a function: the most.
    other: u64,
}

impl Counted {
    fn read(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let kind = words.next()?.to_owned();
        let mut number = || words.next()?.parse().ok();
        Some(Self {
            kind,
            index: usize::try_from(number()?).ok()?,
            times: number()?,
            instructions: number()?,
            other: number()?,
        })
    }
}

/// Runs one of the guest's tests; `None` where no driver was built.
fn count(test: &str) -> Result<Option<Vec<Counted>>, Box<dyn Error>> {
    let Some(driver) = Driver::find("535") else {
        eprintln!("skipped: no woven 535 in target/driver: run ci/driver");
        return Ok(None);
    };
    let out = NamedTempFile::new()?;
    let limit = Duration::from_secs(600);
    let report = driver.count(limit, &format!("only={test}"), out.path())?;
    assert_eq!(report.passed()?, 1);
    let text = fs::read_to_string(out.path())?;
    Ok(Some(text.lines().filter_map(Counted::read).collect()))
}

/// Of the requests that allocate. Each is followed by the one that frees.
const ALLOCATIONS: [(usize, &str); 4] = [
    (0, "4 KiB, two containers deep"),
    (2, "2 MiB, two containers deep"),
    (4, "4 MiB, two containers deep"),
    (6, "2 MiB, eight containers deep"),
];

#[test]
fn charges_are_cheap() -> Result<(), Box<dyn Error>> {
    let Some(counted) = count("costs")? else {
        return Ok(());
    };
    let request = |index| {
        let found = counted
            .iter()
            .find(|one| one.kind == "request" && one.index == index)
            .ok_or(format!("request {index} was not counted"))?;
        assert_eq!(found.times, 200);
        Ok::<_, String>((found.instructions, found.other))
    };
    for (index, name) in ALLOCATIONS {
        let (allocation, charge) = request(index)?;
        let (free, uncharge) = request(index + 1)?;
        eprintln!(
            "{name}: allocation {allocation}, of it the charge {charge}; free {free}, of it the uncharge {uncharge}"
        );
        // Else it was not counted.
        assert!(charge > 100 && uncharge > 100, "{name}");
        assert!(charge < 1000 && uncharge < 1000, "{name}");
        // libcuda takes no less than 2 MiB of a GPU.
        if index > 0 {
            assert!(charge * 100 < allocation, "{name}");
            assert!(uncharge * 100 < allocation, "{name}");
        }
    }
    Ok(())
}

/// The thread's look at one GPU, for which the lock is held: how long at the most.
#[test]
#[ignore = "takes more than a minute; its figures are in docs/driver.md"]
fn a_look_at_4096_containers() -> Result<(), Box<dyn Error>> {
    let Some(counted) = count("looks")? else {
        return Ok(());
    };
    for (index, name) in [(5, "pauses"), (6, "timeslices")] {
        let most = counted
            .iter()
            .find(|one| one.kind == "function" && one.index == index)
            .ok_or(format!("{name} were not counted"))?
            .other;
        eprintln!("{name}: {most}");
        assert!(most > 4096, "{name}");
    }
    Ok(())
}
