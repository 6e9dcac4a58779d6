//! Which messages two devices relay.

use super::*;

#[test]
fn lists_are_relayed_between_devices_that_can_and_may() {
    let tuning = Tuning::default();
    let best = |s: &Situation| choose(s, &tuning, None, |_| true);
    let relaying = |s: Situation, relay| {
        let staged = s.staged.map(|staging| Staging { relay, ..staging });
        Situation { staged, ..s }
    };
    let bytes = 16 << 20;
    let (list, rows) = (devices(bytes, bytes / 24), devices(bytes, 724));
    assert_eq!(best(&relaying(list, true)), Protocol::Relay);
    assert_ne!(best(&list), Protocol::Relay, "nobody said so");
    // One kernel from layout to layout is quicker where runs are few.
    assert_ne!(best(&relaying(rows, true)), Protocol::Relay);
    // Two kernels must not wait for each other in turns.
    let turns = relaying(together(list, true), true);
    assert_ne!(choose(&turns, &tuning, Some(Protocol::Relay), |_| true), Protocol::Relay);
    let shared = relaying(together(list, false), true);
    assert_eq!(choose(&shared, &tuning, Some(Protocol::Relay), |_| true), Protocol::Relay);
    assert_ne!(best(&shared), Protocol::Relay, "one kernel on one device is quicker");
    let endless = relaying(devices(3 << 30, 1 << 20), true);
    assert_ne!(choose(&endless, &tuning, Some(Protocol::Relay), |_| true), Protocol::Relay);
}
