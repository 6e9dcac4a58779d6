//! A message concerns two processes. A third one that answers it, ends it, feeds it or takes it back by naming
//! their numbers is lost, or not listened to; the two others come to their end as if nothing had been said.

use crate::common::forged::{self, CANCEL, CANCEL_EAGER, CANCELLED, REPLY, SERIAL, Told, word_at};
use crate::common::forged::{BY_EAGER, BY_PIPELINE, UNUSED};
use crate::common::lab::{FRAGMENT, config, layout};
use crate::common::rogue::{
    GET, PUT, free, offer, open, ready, reply_of, ring, serial_of, short, words,
};
use crate::common::trio::Trio;
use crate::common::{Buffer, Home, Job, bytes, link};
use gapless_bml::{Bml, Rank};
use gapless_btl::loopback::{Hub, Loopback};
use gapless_btl::{Btl, Token};
use gapless_engine::HostEngine;
use gapless_pml::{AM_TAG, Config, Pml, PmlError, Protocol, RequestId, SendMode, Source, TagSel};
use std::sync::Arc;

const SIZE: u64 = 3 * FRAGMENT as u64;
/// Who the messages are for or from, and who meddles.
const OTHER: u32 = 1;
const THIRD: u32 = 2;

fn shared(protocol: Protocol) -> Config {
    Config { share_device_buffers: true, ..config(protocol, 3) }
}

/// The third has said something about a request: it is lost and has learnt nothing, and the request goes on.
fn assert_unheard(trio: &mut Trio, id: RequestId, what: &str) {
    trio.assert_lost(THIRD, what);
    assert_eq!(trio.pml.test(id), Ok(None), "{what}");
    assert!(!trio.inbox(OTHER).1, "{what}: the other one is not to blame");
    let told = &trio.inbox(THIRD).0;
    assert!(told.is_empty(), "{what}: the third was told {told:?}");
}

fn assert_over(trio: &mut Trio, what: &str) {
    trio.turn();
    assert!(!trio.pml.has_requests() && !trio.pml.is_busy(), "{what}");
    assert_eq!(trio.pml.staging_bytes().1, 0, "{what}");
}

#[test]
fn an_offer_is_answered_by_its_receiver_alone() {
    for what in ["cts", "fin", "unused", "get", "put", "grant", "layout"] {
        let mut trio = Trio::new(shared(Protocol::StagedPut));
        let from = Buffer::source_in(&layout(SIZE, true), 1, 1, trio.home());
        let send = trio.send(&from, SendMode::Standard);
        let serial = serial_of(&trio.heard(OTHER, forged::RTS));
        // Where the third would have the message.
        let catch = Buffer::target_in(&bytes(SIZE), 1, trio.home());
        let key = trio.key(THIRD, &catch.lease(24, SIZE));
        let answer = match what {
            "cts" => forged::cts(serial, 500, SIZE),
            "fin" => short(forged::FIN, BY_PIPELINE, serial),
            "unused" => short(forged::FIN, UNUSED, serial),
            "get" => open(GET, serial, SIZE, 3, None),
            "put" => open(PUT, serial, SIZE, 3, Some(&key)),
            "grant" => Told::of(&bytes(SIZE)).grant(serial, SIZE, &key),
            _ => forged::layout_request(serial, REPLY, 200),
        };
        trio.inject(THIRD, &answer);
        assert_unheard(&mut trio, send, what);
        catch.assert_received(&[], what);
        trio.inject(OTHER, &forged::cts(serial, 4000, SIZE));
        let data = trio.heard(OTHER, forged::DATA);
        assert_eq!(data[32..], from.packed(), "{what}");
        assert_eq!(trio.pml.test(send).unwrap().map(|status| status.bytes), Some(SIZE), "{what}");
        assert_over(&mut trio, what);
    }
}

#[test]
fn a_staged_send_is_led_by_its_receiver_alone() {
    // Before the receiver has mapped the ring, when it has, and when all lies there and has to be taken out.
    for (laid, what) in [(0, "free"), (0, "open"), (3, "free"), (3, "fin"), (5, "fin")] {
        let mut trio = Trio::new(config(Protocol::StagedGet, 3));
        let size = 5 * u64::from(FRAGMENT);
        let from = Buffer::source_in(&layout(size, true), 1, 1, trio.home());
        let send = trio.send(&from, SendMode::Standard);
        let serial = serial_of(&trio.heard(OTHER, forged::RTS));
        trio.inject(OTHER, &open(GET, serial, size, 3, None));
        trio.heard(OTHER, forged::RING);
        let limits = [3, 4, 5];
        let (said, left) = limits.split_at(limits.iter().filter(|&&limit| limit <= laid).count());
        said.iter().for_each(|limit| trio.inject(OTHER, &free(serial, *limit)));
        let word = match what {
            "free" => free(serial, left[0]),
            "fin" => short(forged::FIN, GET, serial),
            _ => open(GET, serial, size, 3, None),
        };
        trio.inject(THIRD, &word);
        assert_unheard(&mut trio, send, what);
        let there = |trio: &mut Trio| {
            let ready = trio.inbox(OTHER).0.iter().filter(|message| message[0] == forged::READY);
            ready.count() as u64
        };
        assert_eq!(there(&mut trio), laid, "{what}");
        left.iter().for_each(|limit| trio.inject(OTHER, &free(serial, *limit)));
        assert_eq!((there(&mut trio), trio.pml.test(send)), (5, Ok(None)), "{what}");
        trio.inject(OTHER, &short(forged::FIN, GET, serial));
        assert_eq!(trio.pml.test(send).unwrap().map(|status| status.bytes), Some(size), "{what}");
        assert_over(&mut trio, what);
    }
}

#[test]
fn an_answer_that_a_short_send_waits_for_is_its_receivers() {
    let from = Buffer::source(&bytes(64), 1, 1);
    // A synchronous one.
    for verdict in [BY_EAGER, CANCELLED, 18] {
        let what = format!("verdict {verdict}");
        let mut trio = Trio::new(Config::default());
        let send = trio.send(&from, SendMode::Synchronous);
        let serial = word_at(&trio.heard(OTHER, forged::EAGER), 32);
        trio.inject(THIRD, &short(forged::FIN, verdict, serial));
        assert_unheard(&mut trio, send, &what);
        trio.inject(OTHER, &short(forged::FIN, BY_EAGER, serial));
        assert_eq!(trio.pml.test(send).unwrap().map(|status| status.bytes), Some(64), "{what}");
    }
    // One that was asked for back.
    for verdict in [BY_EAGER, CANCELLED] {
        let what = format!("verdict {verdict} of a cancelled eager message");
        let mut trio = Trio::new(Config::default());
        let send = trio.send(&from, SendMode::Standard);
        trio.pml.cancel_send(send).unwrap();
        trio.turn();
        let note = trio.heard(OTHER, forged::NOTE);
        assert_eq!(note[2], CANCEL_EAGER, "{what}");
        let serial = word_at(&note, 16);
        trio.inject(THIRD, &short(forged::FIN, verdict, serial));
        assert_unheard(&mut trio, send, &what);
        trio.inject(OTHER, &short(forged::FIN, CANCELLED, serial));
        assert_eq!(trio.pml.test(send), Err(PmlError::Cancelled.into()), "{what}");
    }
}

#[test]
fn a_layout_that_a_put_waits_for_is_its_receivers() {
    let mut trio = Trio::new(shared(Protocol::MappedPut));
    let from = Buffer::source_in(&layout(SIZE, true), 1, 1, trio.home());
    let send = trio.send(&from, SendMode::Standard);
    let serial = serial_of(&trio.heard(OTHER, forged::RTS));
    let shape = layout(SIZE, true);
    let (_, origin) = crate::common::needs(&shape, 1);
    let to = Buffer::target_in(&shape, 1, trio.home());
    let told = Told { inline: false, ..Told::of(&shape) };
    let key = trio.key(OTHER, &to.lease(origin, told.span));
    trio.inject(OTHER, &told.grant(serial, SIZE, &key));
    trio.heard(OTHER, forged::LAYOUT_REQUEST);
    // Not even the right one is taken from somebody else.
    let flat = shape.flatten();
    trio.inject(THIRD, &forged::layout_data(serial, &flat));
    assert_unheard(&mut trio, send, "a piece of layout");
    to.assert_received(&[], "a piece of layout");
    trio.inject(OTHER, &forged::layout_data(serial, &flat));
    assert_eq!(trio.pml.test(send).unwrap().map(|status| status.bytes), Some(SIZE));
    to.assert_received(&from.packed(), "the layout of its own");
    assert_over(&mut trio, "a piece of layout");
}

/// A receive of the endpoint that a message of rank 1 has been matched with, by this protocol.
fn receiving(protocol: Protocol) -> (Trio, Buffer, RequestId) {
    let mut trio = Trio::new(shared(protocol));
    // Staged protocols have a ring where the buffer has gaps.
    trio.pml.config_mut().share_device_buffers = protocol == Protocol::MappedPut;
    let to = Buffer::target_in(&layout(SIZE, true), 1, trio.home());
    let recv = trio.recv(&to, Source::Rank(OTHER));
    trio.inject(OTHER, &offer(SIZE));
    (trio, to, recv)
}

#[test]
fn a_receive_is_fed_by_its_sender_alone() {
    let theirs: Vec<u8> = (0..SIZE).map(|at| 3 + at.to_le_bytes()[0] % 5).collect();
    for what in ["data", "abort"] {
        let (mut trio, to, recv) = receiving(Protocol::Pipeline);
        let reply = word_at(&trio.heard(OTHER, forged::CTS), 24);
        let lie = match what {
            "data" => forged::data(reply, 0, &vec![9; theirs.len()]),
            _ => short(forged::ABORT, 0, reply),
        };
        trio.inject(THIRD, &lie);
        assert_unheard(&mut trio, recv, what);
        trio.inject(OTHER, &forged::data(reply, 0, &theirs));
        assert_eq!(trio.pml.test(recv).unwrap().map(|status| status.bytes), Some(SIZE), "{what}");
        to.assert_received(&theirs, what);
        assert_over(&mut trio, what);
    }
}

#[test]
fn a_staged_receive_is_fed_by_its_sender_alone() {
    for what in ["ready", "refuse", "abort"] {
        let (mut trio, _to, recv) = receiving(Protocol::StagedPut);
        let reply = reply_of(&trio.heard(OTHER, forged::OPEN));
        let lie = match what {
            "ready" => ready(reply, 0),
            "refuse" => short(forged::REFUSE, 1, reply),
            _ => short(forged::ABORT, 0, reply),
        };
        trio.inject(THIRD, &lie);
        assert_unheard(&mut trio, recv, what);
        (0..3).for_each(|index| trio.inject(OTHER, &ready(reply, index)));
        assert_eq!(trio.pml.test(recv).unwrap().map(|status| status.bytes), Some(SIZE), "{what}");
        assert_over(&mut trio, what);
    }
    for what in ["ring", "data", "refuse"] {
        let (mut trio, _to, recv) = receiving(Protocol::StagedGet);
        let reply = reply_of(&trio.heard(OTHER, forged::OPEN));
        let [theirs, own] = [THIRD, OTHER].map(|rank| trio.some_key(rank, SIZE));
        let lie = match what {
            "ring" => ring(reply, 3, &theirs),
            "data" => words(forged::DATA, reply, 0),
            _ => short(forged::REFUSE, 1, reply),
        };
        trio.inject(THIRD, &lie);
        assert_unheard(&mut trio, recv, what);
        trio.inject(OTHER, &ring(reply, 3, &own));
        trio.heard(OTHER, forged::FREE);
        (0..3).for_each(|index| trio.inject(OTHER, &ready(reply, index)));
        assert_eq!(trio.pml.test(recv).unwrap().map(|status| status.bytes), Some(SIZE), "{what}");
        assert_over(&mut trio, what);
    }
}

#[test]
fn a_buffer_that_was_granted_is_filled_by_its_grantee_alone() {
    for what in ["ready", "refuse", "layout"] {
        let (mut trio, _to, recv) = receiving(Protocol::MappedPut);
        let reply = word_at(&trio.heard(OTHER, forged::GRANT), 16);
        let lie = match what {
            "ready" => ready(reply, 0),
            "refuse" => short(forged::REFUSE, 1, reply),
            _ => forged::layout_request(reply, SERIAL, 200),
        };
        trio.inject(THIRD, &lie);
        assert_unheard(&mut trio, recv, what);
        trio.inject(OTHER, &ready(reply, 0));
        assert_eq!(trio.pml.test(recv).unwrap().map(|status| status.bytes), Some(SIZE), "{what}");
        assert_over(&mut trio, what);
    }
}

#[test]
fn a_layout_that_a_receive_waits_for_is_its_senders() {
    let shape = layout(SIZE, true);
    let mut trio = Trio::new(shared(Protocol::Mapped));
    let (len, origin) = crate::common::needs(&shape, 1);
    let allocation = trio.rogue(OTHER).allocate(len).unwrap().unwrap();
    let from = Buffer::source_in(&shape, 1, 5, Home::Mapped(allocation.lease().clone()));
    let told = Told { inline: false, ..Told::of(&shape) };
    let key = trio.key(OTHER, &from.lease(origin, told.span));
    let to = Buffer::target(&bytes(SIZE), 1);
    let recv = trio.recv(&to, Source::Rank(OTHER));
    trio.inject(OTHER, &told.rts(0, Some(&key)));
    let reply = word_at(&trio.heard(OTHER, forged::LAYOUT_REQUEST), 16);
    trio.inject(THIRD, &forged::layout_data(reply, &shape.flatten()));
    assert_unheard(&mut trio, recv, "a piece of layout");
    trio.inject(OTHER, &forged::layout_data(reply, &shape.flatten()));
    assert_eq!(trio.pml.test(recv).unwrap().map(|status| status.protocol), Some(Protocol::Mapped));
    to.assert_received(&from.packed(), "a piece of layout");
    assert_over(&mut trio, "a piece of layout");
}

/// Notes name messages of their sender's only, so that the third breaks no rule: it may have had such messages.
#[test]
fn a_message_that_waits_is_taken_back_by_its_sender_alone() {
    let payload = [7; 40];
    for (what, deferred) in
        [(CANCEL, false), (CANCEL_EAGER, false), (forged::GO, true), (forged::NEVER, true)]
    {
        let note_of = |sequence| forged::note(sequence, what, 0, SERIAL);
        let what = format!("note {what}");
        let mut trio = Trio::new(config(Protocol::Pipeline, 3));
        let mut offered = Told::of(&bytes(SIZE)).rts(1, None);
        offered[110] = u8::from(deferred);
        trio.inject(OTHER, &forged::eager(0, 0, &payload));
        trio.inject(OTHER, &offered);
        trio.inject(THIRD, &note_of(0));
        let short_to = Buffer::target(&bytes(40), 1);
        let recv = trio.recv(&short_to, Source::Any);
        assert_eq!(trio.pml.test(recv).unwrap().map(|status| status.source), Some(OTHER), "{what}");
        short_to.assert_received(&payload, &what);
        let to = Buffer::target(&bytes(SIZE), 1);
        let recv = trio.recv(&to, Source::Any);
        trio.turn();
        let asked = |trio: &mut Trio| trio.inbox(OTHER).0.iter().any(|m| m[0] == forged::CTS);
        assert_eq!(asked(&mut trio), !deferred, "{what}: before its data is there");
        if deferred {
            // The same once the receive waits for the word.
            trio.inject(THIRD, &note_of(1));
            assert!(!asked(&mut trio), "{what}: before its data is there");
            trio.inject(OTHER, &forged::note(2, forged::GO, 0, SERIAL));
        }
        assert_eq!(trio.pml.test(recv), Ok(None), "{what}");
        let reply = word_at(&trio.heard(OTHER, forged::CTS), 24);
        let data = vec![8; usize::try_from(SIZE).unwrap()];
        trio.inject(OTHER, &forged::data(reply, 0, &data));
        assert_eq!(trio.pml.test(recv).unwrap().map(|status| status.bytes), Some(SIZE), "{what}");
        to.assert_received(&data, &what);
        assert_over(&mut trio, &what);
    }
}

/// Two honest ranks that make a communicator of their own, and a bare transport behind rank 2.
struct Club {
    job: Job,
    non_member: Bml,
    inbox: crate::common::rogue::Inbox,
}

impl Club {
    fn new() -> Club {
        let hub = Hub::new();
        let mut bmls = [0, 1, 2].map(|rank| Bml::new(Rank(rank), 3));
        for bml in &mut bmls {
            bml.add(Box::new(Loopback::with(&hub, link())) as Box<dyn Btl>);
        }
        let addresses = bmls.each_ref().map(Bml::addresses);
        for (me, bml) in (0..3).zip(&mut bmls) {
            for peer in (0..3).filter(|peer| *peer != me) {
                bml.connect(Rank(peer), &addresses[peer as usize]).unwrap();
            }
        }
        let [zero, one, non_member] = bmls;
        let honest = |bml| Some(Pml::new(bml, vec![Arc::new(HostEngine) as _], Config::default()));
        let job = Job { ranks: vec![honest(zero), honest(one)] };
        Club { job, non_member, inbox: crate::common::rogue::Inbox::default() }
    }

    fn says(&mut self, message: &[u8]) {
        let mut slot = self.non_member.reserve(Rank(0), message.len()).unwrap();
        slot.write(0, message).unwrap();
        self.non_member.send(slot, AM_TAG, Token::NONE);
        self.turn();
    }

    /// Rank 0 alone goes on.
    fn turn(&mut self) {
        for _ in 0..10 {
            self.job.pml(0).progress();
            self.non_member.poll(&mut self.inbox);
        }
    }
}

#[test]
fn what_a_non_member_sent_to_a_communicator_before_it_was_known_is_not_kept() {
    let offered = |context: u32| {
        let mut message = Told::of(&bytes(5000)).rts(0, None);
        message[4..8].copy_from_slice(&context.to_le_bytes());
        message
    };
    // In the two contexts of the first communicator that is made, eagerly and as an offer.
    let messages = [forged::eager(0, 4, &[1; 8]), forged::eager(0, 5, &[1; 8]), offered(4)];
    for (case, message) in messages.iter().enumerate() {
        let what = format!("case {case}");
        let mut club = Club::new();
        let world = club.job.pml(0).world();
        // Rank 1 leads, and knows the new one first.
        let members = world.group().incl(&[1, 0]).unwrap();
        let request = club.job.pml(0).start_create_group(&world, &members, 3).unwrap();
        club.turn();
        club.says(message);
        assert!(!club.inbox.1, "{what}: nobody knows yet who belongs to it");
        let theirs = club.job.pml(1).world();
        let other = club.job.pml(1).start_create_group(&theirs, &members, 3).unwrap();
        // A member's early message is kept.
        let from = Buffer::source(&bytes(8), 1, 4);
        let made = (0..1000).find_map(|_| club.job.pml(1).test_comm(other).unwrap());
        let made = made.flatten().expect("rank 0 has said its part");
        assert!(club.job.pml(0).collect_comm(request).unwrap().is_none(), "rank 1 was first");
        // SAFETY: the buffer lives until the request has ended.
        let send = unsafe { club.job.pml(1).isend(&made, &from.typed(), 1, 6) }.unwrap();
        club.turn();
        let comm = club.job.pml(0).test_comm(request).unwrap().flatten().unwrap();
        club.turn();
        assert!(club.inbox.1, "{what}: the non-member was not told");
        for (place, kept) in [(&comm, true), (&comm.collective(), false)] {
            let found = club.job.pml(0).iprobe(place, Source::Any, TagSel::Any).unwrap();
            assert_eq!(found.map(|status| (status.source, status.tag)), kept.then_some((0, 6)));
        }
        let to = Buffer::target(&bytes(8), 1);
        // SAFETY: as above.
        let recv = unsafe { club.job.pml(0).irecv(&comm, &to.typed(), Source::Any, TagSel::Any) };
        club.job.finish(0, recv.unwrap()).unwrap();
        to.assert_received(&from.packed(), &what);
        club.job.finish(1, send).unwrap();
        // And that was all.
        assert_eq!(club.job.pml(0).iprobe(&comm, Source::Any, TagSel::Any), Ok(None), "{what}");
    }
}
