//! The woven driver, one boot for each release that `ci/driver` built.

use std::time::Duration;

use ghost_vm::Driver;

fn boot(branch: &str) -> Result<(), Box<dyn std::error::Error>> {
    let Some(driver) = Driver::find(branch) else {
        eprintln!("skipped: no woven {branch} in target/driver: run ci/driver");
        return Ok(());
    };
    let report = driver.boot(Duration::from_secs(900))?;
    let passed = report.passed()?;
    for skipped in report.skipped() {
        eprintln!("skipped: {skipped}");
    }
    eprintln!("{}: {passed} passed", driver.version);
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
