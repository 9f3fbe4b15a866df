//! GPU memory held at the allocation: real processes under the real filter, a stand-in for the
//! driver, and the guardian's program.

mod host;

use host::{GIB, Host, MIB, until};

#[test]
fn the_limit_holds_at_the_allocation() {
    let Some(host) = Host::start(1) else { return };
    host.limit(&[("a", GIB)]);
    let mut tenant = host.tenant("a");
    assert!(tenant.ask("alloc=1000M").starts_with("0x"));
    assert_eq!(tenant.ask("alloc=25M"), "out of memory");
    let last = tenant.ask("alloc=24M");
    assert!(last.starts_with("0x"));
    assert_eq!(host.current("a"), GIB);
    assert_eq!(host.standin.memory_of(tenant.pid(), 0), GIB);
    assert_eq!(tenant.ask(&format!("free={last}")), "ok");
    assert_eq!(host.current("a"), 1000 * MIB);
    tenant.kill();
    until("the charge is gone", || host.current("a") == 0);
}
