//! Round trips, and bytes that no honest peer sends.

use super::*;
use crate::protocol::Protocol;
use crate::wire::DataState;
use crate::wire::{Doing, WaitingCall};
use gapless_dtype::{Datatype, Primitive};

pub(crate) fn envelope(count: u64) -> Envelope {
    let digest = Datatype::from(Primitive::Double).signature().digest(count);
    let mode = SendMode::Standard;
    Envelope { context: 6, tag: -3, sequence: 0xFFFF_FFFE, digest, mode }
}

pub(crate) fn rts() -> Rts {
    Rts {
        envelope: envelope(1000),
        serial: 77,
        count: 10,
        low: -64,
        span: 16_000,
        blocks: 100,
        layout_id: 3,
        layout_bytes: 5,
        fragment: 32_768,
        depth: 4,
        host: false,
        staged: StagedOffer {
            locked: false,
            copies_only: true,
            shares: 1,
            device: true,
            through_host: true,
            readable: true,
            fragment: 4096,
            depth: 3,
            device_id: 5,
        },
        cached: false,
        data: DataState::Pending,
        mapped: RemoteKey::new(&[1; 20]),
        rdma: RemoteKey::new(&[2; 80]),
        inline: 228..233,
    }
}

#[test]
fn an_eager_header_says_what_it_was_told() {
    let first = envelope(3).eager();
    assert_eq!(Head::parse(&first, 32 + 24), Ok(Head::Eager(envelope(3))));
    // A digest of three doubles cannot be one of no bytes, nor of fewer bytes than elements.
    assert!(Head::parse(&first, 32).is_err());
    assert!(Head::parse(&first, 31).is_err());
}

#[test]
fn a_mode_is_told_and_a_synchronous_message_has_its_serial() {
    for (mode, serial) in [(SendMode::Ready, 0), (SendMode::Synchronous, 8)] {
        let envelope = Envelope { mode, ..envelope(3) };
        assert_eq!(envelope.eager_bytes(), 32 + serial);
        let mut first = envelope.eager();
        assert_eq!(Head::parse(&first, 32 + serial + 24), Ok(Head::Eager(envelope)));
        assert!(Head::parse(&first, 32 + serial).is_err());
        first[2] = 3;
        assert!(Head::parse(&first, 32 + serial + 24).is_err());
    }
}

#[test]
fn an_rts_says_what_it_was_told() {
    let mut bytes = [0; CONTROL_MAX];
    let len = rts().write(&[9; 5], &mut bytes);
    assert_eq!(len, 233);
    assert_eq!(Message::parse(&bytes[..len]), Ok(Message::Rts(Box::new(rts()))));
    for shorter in 0..len {
        assert!(Message::parse(&bytes[..shorter]).is_err(), "{shorter} bytes");
    }
}

#[test]
fn each_wish_of_an_rts_is_told_by_itself() {
    let mut bytes = [0; CONTROL_MAX];
    for (marks, host) in (0..32u8).flat_map(|marks| [(marks, true), (marks, false)]) {
        let [device, through_host, readable, locked, copies_only] =
            [1, 2, 4, 8, 16].map(|mark| marks & mark != 0);
        // Memory of a device is not the host's, and only the host's is page-locked.
        let can_be = if host { !device && !readable && !copies_only } else { !locked };
        let shares = u8::from(!host);
        for (data, cached) in
            [(DataState::Present, true), (DataState::Pending, false), (DataState::Pending, true)]
        {
            let none = StagedOffer { fragment: 0, depth: 0, ..rts().staged };
            let some = if marks != 0 { rts().staged } else { none };
            let staged =
                StagedOffer { device, through_host, readable, locked, copies_only, shares, ..some };
            let offer = Rts { host, staged, cached, data, ..rts() };
            let len = offer.write(&[9; 5], &mut bytes);
            assert_eq!((bytes[108], bytes[109]), (u8::from(!host), marks));
            let parsed = Message::parse(&bytes[..len]);
            let told = can_be.then(|| Message::Rts(Box::new(offer)));
            assert_eq!(parsed.ok(), told, "marks {marks}, in memory of the host: {host}");
        }
    }
}

#[test]
fn the_least_that_an_rts_may_say_is_taken_and_less_is_not() {
    let mut bytes = [0; CONTROL_MAX];
    let mut parse = |offer: &Rts| {
        let len = offer.write(&[9; 5], &mut bytes);
        Message::parse(&bytes[..len])
    };
    let staged = StagedOffer { fragment: FRAGMENT_MIN, depth: 1, ..rts().staged };
    let least = Rts { staged, fragment: FRAGMENT_MIN, ..rts() };
    assert_eq!(parse(&least), Ok(Message::Rts(Box::new(least.clone()))));
    for staged in
        [StagedOffer { fragment: FRAGMENT_MIN - 1, ..staged }, StagedOffer { depth: 0, ..staged }]
    {
        assert!(parse(&Rts { staged, ..least.clone() }).is_err(), "{staged:?}");
    }
    assert!(parse(&Rts { fragment: FRAGMENT_MIN - 1, ..least }).is_err());
}

#[test]
fn an_rts_with_a_mark_that_is_not_known_is_refused() {
    let mut bytes = [0; CONTROL_MAX];
    let len = rts().write(&[9; 5], &mut bytes);
    // Whether the buffer is a device's, how it can be staged (8 is of memory of the host), and the flags.
    assert_eq!(bytes[108..111], [1, 23, 1]);
    for (place, most) in [(108, 1), (109, 31), (110, 3)] {
        let mut bytes = bytes;
        for mark in most + 1..=u8::MAX {
            bytes[place] = mark;
            let Err(error) = Message::parse(&bytes[..len]) else { panic!("{mark} at {place}") };
            assert!(error.contains("unknown"), "{mark} at {place}: {error}");
        }
    }
}

#[test]
fn a_long_layout_is_left_out() {
    let mut bytes = [0; CONTROL_MAX];
    let offer = Rts { layout_bytes: 2000, inline: 228..228, ..rts() };
    let len = offer.write(&[9; 2000], &mut bytes);
    assert_eq!(Message::parse(&bytes[..len]), Ok(Message::Rts(Box::new(offer))));
}

#[test]
fn other_kinds_say_what_they_were_told() {
    let cts = Cts { serial: 1, reply: 2, offset: 3, end: 4, fragment: 5, depth: 6 };
    assert_eq!(Message::parse(&cts.wire()), Ok(Message::Cts(cts)));
    assert!(Message::parse(&Cts { end: 3, ..cts }.wire()).is_err());
    assert!(Message::parse(&Cts { fragment: 0, ..cts }.wire()).is_err());
    for verdict in [Verdict::Received(Protocol::Mapped), Verdict::Refused, Verdict::NotReady] {
        let message = Message::Fin { serial: 8, verdict };
        assert_eq!(Message::parse(&fin(8, verdict)), Ok(message));
    }
    assert!(Message::parse(&short(kind::FIN, 14, 8)).is_err());
    let cancel_eager = NoteKind::CancelEager { sequence: 0xFFFF_FFFE, serial: 1 << 40 };
    for what in [NoteKind::Cancel { serial: 9 }, NoteKind::Farewell, cancel_eager] {
        let said = Note { sequence: 0xFFFF_FFFF, what };
        assert_eq!(Message::parse(&note(said)), Ok(Message::Note(said)));
    }
    let calls = [
        WaitingCall::Nothing,
        WaitingCall::Send { tag: -3 },
        WaitingCall::Receive { tag: Some(i32::MAX) },
        WaitingCall::Receive { tag: None },
        WaitingCall::Probe { tag: None },
        WaitingCall::Collective { operation: 18, number: u64::MAX },
        WaitingCall::Window,
        WaitingCall::Task,
        WaitingCall::Making,
        WaitingCall::Leaving,
        WaitingCall::Other,
        WaitingCall::Was { operation: 1, number: 0 },
    ];
    for (at, call) in calls.into_iter().enumerate() {
        let (is_question, some) = (at % 2 == 0, (at % 3 > 0).then_some(5));
        let doing = Doing { call, context: some, whom: some, millis: 9 };
        let said = Message::Asking { is_question, doing };
        assert_eq!(Message::parse(&asking(is_question, &doing)), Ok(said));
    }
    let request = Message::LayoutRequest { serial: 1, reply: 2, piece: 3 };
    assert_eq!(Message::parse(&layout_request(1, 2, 3)), Ok(request));
    assert_eq!(Message::parse(&abort(8)), Ok(Message::Abort { reply: 8 }));
    let data = Message::LayoutData { reply: 1, offset: 2, length: 3 };
    assert_eq!(Message::parse(&layout_data(1, 2, 3)), Ok(data));
    let head = Head::parse(&super::data(5, 6), 32);
    assert_eq!(head, Ok(Head::Data { reply: 5, offset: 6 }));
}

#[test]
fn reserved_bytes_are_zero_in_every_kind() {
    let cts = Cts { serial: 1, reply: 2, offset: 3, end: 4, fragment: 5, depth: 6 };
    let farewell = Note { sequence: 0, what: NoteKind::Farewell };
    let honest: [(&[u8], &[usize]); 6] = [
        (&note(farewell), &[3, 7, 11, 16]),
        (&cts.wire(), &[2, 3, 12, 15]),
        (&fin(8, Verdict::Refused), &[3, 7]),
        (&abort(8), &[2, 3, 7]),
        (&layout_request(1, 2, 3), &[2, 7]),
        (&layout_data(1, 2, 3), &[2, 7]),
    ];
    for (message, places) in honest {
        assert!(Message::parse(message).is_ok());
        for &at in places {
            let mut forged = message.to_vec();
            forged[at] = 1;
            assert!(Message::parse(&forged).is_err(), "kind {}, byte {at}", message[0]);
        }
    }
}

#[test]
fn no_bytes_make_the_parser_panic() {
    let mut bytes = [0; CONTROL_MAX];
    let len = rts().write(&[9; 5], &mut bytes);
    let mut seed = 0x2545_F491_4F6C_DD1Du64;
    for round in 0..200_000 {
        let mut forged = bytes;
        for _ in 0..1 + round % 4 {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            let at = usize::try_from(seed % 117).unwrap();
            forged[at] = seed.to_le_bytes()[5];
        }
        forged[0] = 1 + u8::try_from(round % 10).unwrap();
        let message = &forged[..len - usize::try_from(round % 3).unwrap()];
        if let Ok(Message::Rts(offer)) = Message::parse(message) {
            assert!(offer.inline.end == message.len() && offer.fragment > 0);
        }
        let mut first = [0; EAGER_BYTES];
        first.copy_from_slice(&forged[..EAGER_BYTES]);
        let _ = Head::parse(&first, usize::try_from(seed % 200).unwrap());
    }
}
