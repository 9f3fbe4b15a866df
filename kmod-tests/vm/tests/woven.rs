//! The woven driver, one boot for each of Debian's releases that `ci/driver` built, and for the release
//! that `ci/driver-matrix` names.

use std::time::Duration;

use ghost_vm::Driver;

fn boot(release: &str) -> Result<(), Box<dyn std::error::Error>> {
    let Some(driver) = Driver::find(release) else {
        eprintln!("skipped: no woven {release} in target/driver: run ci/driver");
        return Ok(());
    };
    // By hand, for runs that take longer.
    let seconds = std::env::var("GHOST_VM_SECONDS").unwrap_or_default();
    let report = driver.boot(
        Duration::from_secs(seconds.parse().unwrap_or(900)),
        &std::env::var("GHOST_VM_APPEND").unwrap_or_default(),
    )?;
    let passed = report.passed()?;
    for skipped in report.skipped() {
        eprintln!("skipped: {skipped}");
    }
    let skipped = report.skipped().len();
    eprintln!("{}: {passed} passed, {skipped} left out", driver.version);
    Ok(())
}

#[test]
fn woven_535() -> Result<(), Box<dyn std::error::Error>> {
    boot("535")
}

#[test]
fn woven_550() -> Result<(), Box<dyn std::error::Error>> {
    boot("550")
}

#[test]
fn woven_named() -> Result<(), Box<dyn std::error::Error>> {
    match std::env::var("GHOST_VM_RELEASE") {
        Ok(release) if Driver::find(&release).is_none() => {
            Err(format!("{release} is not built").into())
        }
        Ok(release) => boot(&release),
        Err(_) => Ok(()),
    }
}
