//! Memory of the host that a process has page-locked for its own device.

use crate::common::lab::{Lab, config};
use crate::common::{Buffer, bytes, strided};
use gapless_pml::{Config, Protocol};
use std::sync::atomic::Ordering;

const PUT: Protocol = Protocol::MappedPut;

/// A device that reaches its process's memory of the host moves all messages between that and a peer's device: it writes
/// what its process sends, and reads what its process receives.
#[test]
fn page_locked_memory_is_moved_by_its_own_device() {
    const LONG: u64 = 80_000;
    for shapes in 0..4 {
        let shape = |gaps: bool| if gaps { strided(LONG / 4, 4, 9) } else { bytes(LONG) };
        let (ours, theirs) = (shape(shapes & 1 == 1), shape(shapes & 2 == 2));
        let mut config = Config { force: None, share_device_buffers: true, ..config(PUT, 3) };
        config.tuning.copy_bytes_min = 10_000;
        let mut lab = Lab::new(config, 2);
        let pieces = |lab: &Lab| [0, 1].map(|rank| lab.engines[rank].pieces.lock().unwrap().len());
        let sent = |lab: &mut Lab, up: bool, what: &str| {
            let from = Buffer::source_in(&ours, 1, 5, lab.home(!up));
            let to = Buffer::target_in(&theirs, 1, lab.home(up));
            lab.carry(&from, &to, what).protocol
        };
        for up in [true, false] {
            let protocol = sent(&mut lab, up, "ordinary memory");
            assert!(![PUT, Protocol::Mapped].contains(&protocol), "{protocol}");
        }
        // A sender only asks if it knows that its receiver has devices.
        lab.job.pml(1).config_mut().force = Some(Protocol::CopyInOut);
        assert_eq!(sent(&mut lab, true, "staged"), Protocol::CopyInOut);
        lab.job.pml(1).config_mut().force = None;
        // The one at the host's end.
        for (up, rank, by) in [(true, 0, PUT), (false, 1, Protocol::Mapped)] {
            lab.engines[rank].reaches_host.store(true, Ordering::Relaxed);
            for round in 0..2 {
                let before = pieces(&lab);
                let what = format!("shapes {shapes:b}, up {up}, round {round}");
                assert_eq!(sent(&mut lab, up, &what), by, "{what}");
                let mut expected = before;
                // Without gaps at both ends it copies, which is no engine's work; the lab copies from 10,000 bytes on.
                expected[rank] += usize::from(shapes != 0);
                assert_eq!(pieces(&lab), expected, "{what}");
            }
            lab.engines[rank].reaches_host.store(false, Ordering::Relaxed);
            assert_ne!(sent(&mut lab, up, "unlocked again"), by);
        }
    }
}
