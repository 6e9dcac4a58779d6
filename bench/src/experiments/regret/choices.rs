//! What the defaults choose for the messages of `regret` that begin or end in a device's memory: in `choices.txt`,
//! so that no change of the numbers, those of the host's least, moves one unseen.

use std::fmt::Write as _;

use gapless_dtype::{Convertor, Layout};
use gapless_pml::choose::{DeviceEnds, SingleCopyCosts, Staging, Touched, choose};
use gapless_pml::{Protocol, Situation, Tuning};

use super::subjects;

/// Between which buffers, and whether the host's can be mapped.
struct BufferPair {
    name: &'static str,
    devices: Option<DeviceEnds>,
    mapped: bool,
}

const fn ends(sender: bool, receiver: bool, one_device: bool, sender_keeps: bool) -> DeviceEnds {
    DeviceEnds { sender, receiver, one_device, turns: one_device, sender_keeps, locked: false, copies_only: false }
}

const fn place(name: &'static str, ends: DeviceEnds, mapped: bool) -> BufferPair {
    BufferPair { name, devices: Some(ends), mapped }
}

/// As the experiment names them, and which way.
const PLACES: [BufferPair; 7] = [
    place("link", ends(true, true, false, false), true),
    place("one", ends(true, true, true, true), true),
    place("one back", ends(true, true, true, false), true),
    place("bus", ends(true, false, false, true), true),
    place("bus back", ends(false, true, false, false), true),
    place("bus-heap", ends(true, false, false, true), false),
    place("bus-heap back", ends(false, true, false, false), false),
];

/// As the shared memory of a host promises it.
fn situation((from, to): (&(Layout, u64), &(Layout, u64)), place: &BufferPair) -> Situation {
    let blocks = |(layout, count): &(Layout, u64)| layout.blocks_of(*count).unwrap_or(u64::MAX).max(1);
    let bounds = Convertor::new(&from.0, from.1).ok().and_then(|convertor| convertor.bounds());
    let touched = Touched::between((&from.0, from.1), (&to.0, to.1));
    let staging = |ends: DeviceEnds| Staging {
        sender_device: ends.sender,
        receiver_device: ends.receiver,
        shared: true,
        one_device: ends.one_device,
        direct: ends.receiver && blocks(to) == 1,
        fragment_bytes: Tuning::default().staged_fragment_bytes,
        depth: Tuning::default().staged_depth,
    };
    Situation {
        bytes: from.0.size() * from.1,
        sender_blocks: blocks(from),
        sender_span: bounds.map_or(0, |(low, high)| low.abs_diff(high)),
        receiver_blocks: blocks(to),
        devices: place.devices,
        local: false,
        link_eager_bytes: 64 << 10,
        latency_ns: 100.0,
        bandwidth_mb_s: 20_000.0,
        // A device maps its own memory, and that of the host.
        mapped: place.mapped,
        grants: place.mapped,
        single_copy: Some(SingleCopyCosts {
            operation_ns: 600.0,
            piece_ns: 350.0,
            bandwidth_mb_s: 15_000.0,
            pieces_max: 1024,
            devices: false,
            register_ns: [0.0; 2],
        }),
        cached: false,
        layout_fetch_bytes: 0,
        layout_uses: 1,
        layout_fetch_max: 32 << 20,
        touched: place.devices.map(|_| touched),
        staged: place.devices.map(staging),
        staged_read: None,
    }
}

/// Whether the sender, who takes the receiver's buffer for one like its own, sends at once.
fn eager(from: &(Layout, u64), place: &BufferPair, tuning: &Tuning) -> bool {
    let like_mine = match place.devices {
        Some(ends) if ends.sender => {
            let ends = DeviceEnds { receiver: true, one_device: false, turns: false, ..ends };
            // What a device's memory can be mapped is known later.
            BufferPair { name: "", devices: Some(ends), mapped: false }
        }
        _ => BufferPair { name: "", devices: None, mapped: place.mapped },
    };
    let s = Situation { grants: false, ..situation((from, from), &like_mine) };
    let s = Situation { staged: s.staged.map(|staging| Staging { direct: false, ..staging }), ..s };
    s.bytes <= tuning.eager_bytes_sure || choose(&s, tuning, None, |_| true) == Protocol::Eager
}

/// How a message goes.
fn chosen(sides: (&(Layout, u64), &(Layout, u64)), place: &BufferPair, tuning: &Tuning) -> Protocol {
    if eager(sides.0, place, tuning) {
        return Protocol::Eager;
    }
    choose(&situation(sides, place), tuning, None, |protocol| protocol != Protocol::Eager)
}

#[test]
fn what_devices_are_chosen_is_as_it_was() {
    let tuning = Tuning::default();
    let mut text = PLACES.map(|place| place.name).join(" | ");
    text.push('\n');
    for (shape, size) in subjects(false) {
        let case = shape.case(size).unwrap();
        let [from, to] = [&case.send, &case.recv].map(|side| (side.datatype.commit().unwrap(), side.count));
        let protocols = PLACES.map(|place| chosen((&from, &to), &place, &tuning).name());
        writeln!(text, "{}: {}", case.name, protocols.join(" | ")).unwrap();
    }
    let recorded = include_str!("choices.txt");
    if text != recorded {
        let differ = |(now, before): &(&str, &str)| now != before;
        let moved: Vec<_> = text.lines().zip(recorded.lines()).filter(differ).collect();
        panic!("now, and before: {moved:#?}\nif that is meant, choices.txt is to be:\n{text}");
    }
}
