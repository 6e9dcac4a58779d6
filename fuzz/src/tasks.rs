//! Packets of tasks, and what a peer says about tasks. A packet is refused, or rewritten as the oracle does. Whatever a peer
//! says, the process that hears it still runs tasks, of its own threads and of a worker.

use crate::input::Input;
use gapless_bml::{AmTag, Bml, Handler, Rank, RankEvent};
use gapless_btl::Token;
use gapless_xtq::device::mock_worker::{MockWorker, memory};
use gapless_xtq::device::{DeviceFunction, Life};
use gapless_xtq::packet::{Launch, PACKET_BYTES, Packet};
use gapless_xtq::rewrite::{Places, rewrite};
use gapless_xtq::tables::Tables;
use gapless_xtq::{Config, Function, Kernel, Put, QueueOptions, Retry, Xtq, sample};
use std::sync::OnceLock;

/// Most messages of one run.
const MESSAGES: usize = 48;
/// Turns in which a task ends; threads run it meanwhile.
const TURNS: usize = 1_000_000;
/// The tag and the length of what messages about tasks begin with.
const TAG: AmTag = AmTag(32);
const HEAD_BYTES: usize = 24;

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    if input.byte().is_multiple_of(8) { talk(&mut input) } else { packet(&mut input) }
}

fn filled(input: &mut Input<'_>) -> [u8; PACKET_BYTES] {
    let mut bytes = [0; PACKET_BYTES];
    let taken = input.take(PACKET_BYTES);
    bytes[..taken.len()].copy_from_slice(taken);
    bytes
}

fn packet(input: &mut Input<'_>) {
    static TABLES: OnceLock<Tables> = OnceLock::new();
    let tables = TABLES.get_or_init(sample::tables);
    let places = Places { arguments: input.number(), payload: input.number() };
    let packet = Packet::read(&filled(input)).expect("as long as a packet");
    let rewritten = rewrite(&packet, tables, places).ok();
    assert_eq!(rewritten, sample::expected(&packet, tables, places));
    if let (Ok(command), Some(sequence)) = (packet.sent(), packet.sequence()) {
        let again = Packet::new(&command).map(|packet| packet.sealed(sequence));
        assert!(again == Ok(packet), "what is written is not what was read");
    }
}

/// Nothing else arrives.
struct Deaf;

impl Handler for Deaf {
    fn handle(&mut self, _: &mut Bml, _: RankEvent) {}
}

/// Keeps what arrives last.
#[derive(Default)]
struct Inbox(Vec<u8>);

impl Handler for Inbox {
    fn handle(&mut self, _: &mut Bml, event: RankEvent) {
        if let RankEvent::Arrived { fragment, .. } = event
            && let Ok(bytes) = fragment.to_vec()
        {
            self.0 = bytes;
        }
    }
}

/// An honest end of rank 0, and a bare transport behind rank 1.
fn pair() -> (Bml, Xtq, Bml) {
    let [mut bml, rogue] = crate::ends::two();
    let xtq = honest(&mut bml);
    (bml, xtq, rogue)
}

/// The version of messages, as the honest end says it.
fn version() -> u8 {
    static VERSION: OnceLock<u8> = OnceLock::new();
    *VERSION.get_or_init(|| {
        let (mut bml, xtq, mut rogue) = pair();
        xtq.put(Put::function(Rank(1), 0, 0, [0, 0])).expect("it is a put");
        let mut inbox = Inbox::default();
        for turn in 0..64 {
            bml.poll(&mut Deaf);
            xtq.advance(&mut bml, turn * 20_000);
            rogue.poll(&mut inbox);
        }
        assert!(inbox.0.len() >= HEAD_BYTES, "a put is said by one message");
        inbox.0[1]
    })
}

/// A message that is nearly right.
fn message(input: &mut Input<'_>, serial: &mut u32) -> Vec<u8> {
    let (how, code) = (input.byte(), input.byte());
    let kind = how % 7;
    let names = if how & 64 == 0 {
        [u64::from(input.byte() % 4), 0]
    } else {
        [input.number(), input.number()]
    };
    let number = if how & 128 == 0 { *serial } else { u32::from(input.byte()) };
    *serial = serial.wrapping_add(u32::from(how & 128 == 0));
    let mut bytes = vec![kind, version(), code % if how & 32 == 0 { 8 } else { 255 }, 0];
    bytes.extend(number.to_le_bytes());
    bytes.extend(names.iter().flat_map(|name| name.to_le_bytes()));
    debug_assert_eq!(bytes.len(), HEAD_BYTES);
    match kind {
        1 => {
            let mut packet = filled(input);
            // Of a kernel or a function at 0, mostly.
            if how & 16 == 0 {
                packet = [0; PACKET_BYTES];
                for part in packet.chunks_mut(16) {
                    part[0] = 1;
                }
                packet[2] = 1 + (code & 1);
                packet[52] = code >> 4;
                if code & 1 == 1 {
                    let words: [(usize, u32); 5] = [(24, 32), (28, 1), (40, 1), (44, 24), (56, 32)];
                    for (at, word) in words {
                        packet[at..at + 4].copy_from_slice(&word.to_le_bytes());
                    }
                    packet[58..62].copy_from_slice(&[1, 0, 1, 0]);
                }
            }
            let body = usize::from(packet[52] & 15) + if packet[2] == 2 { 24 } else { 0 };
            bytes.extend(packet);
            bytes.extend(vec![7; if how & 8 == 0 { body } else { input.byte().into() }]);
        }
        _ => bytes.extend_from_slice(input.take(usize::from(how & 15) * 6)),
    }
    bytes
}

#[allow(unsafe_code, reason = "registers a kernel, whose memory nobody touches")]
fn honest(bml: &mut Bml) -> Xtq {
    let xtq = Xtq::attach(bml, Config::default()).expect("nobody has the tag");
    let life = Life { idle: Some(std::time::Duration::from_micros(20)), ..Life::default() };
    xtq.attach_worker(MockWorker::new(|_| Ok(())), life).expect("a worker");
    let function = Function::new(4096, |_| Ok(()));
    xtq.register_function(0, function).expect("an index");
    let kernel = Kernel::of_worker(DeviceFunction::Copy, 4096);
    // SAFETY: the worker touches no memory.
    unsafe { xtq.register_kernel(0, kernel) }.expect("an index");
    xtq.register_queue(0, QueueOptions::default()).expect("an index");
    xtq.post(vec![0; 4096]);
    let buffer = memory(4096).expect("memory");
    // SAFETY: likewise.
    unsafe { xtq.post_to_worker(buffer) }.expect("a buffer");
    xtq
}

fn talk(input: &mut Input<'_>) {
    let (mut bml, xtq, mut rogue) = pair();
    let (mut serial, mut now) = (0, 0);
    let mut turn = |bml: &mut Bml, rogue: &mut Bml| {
        now += 20_000;
        bml.poll(&mut Deaf);
        xtq.advance(bml, now);
        rogue.poll(&mut Deaf);
    };
    for _ in 0..MESSAGES {
        if input.is_over() {
            break;
        }
        let message = message(input, &mut serial);
        if let Ok(mut slot) = rogue.reserve(Rank(0), message.len()) {
            slot.write(0, &message).expect("as long as was asked for");
            rogue.send(slot, TAG, Token::NONE);
        }
        turn(&mut bml, &mut rogue);
    }
    let kernel = Put::kernel(Rank(0), 0, 0, Launch::linear(1, 32, 24), vec![0; 24]);
    for put in [Put::function(Rank(0), 0, 0, [0, 0]), kernel] {
        // Without a payload: the peer may have begun one that takes all receive buffers.
        let put = put.retry(Retry::InAnyOrder).acknowledged();
        let put = xtq.put(put).expect("it is a put");
        let ended = (0..TURNS).any(|_| {
            turn(&mut bml, &mut rogue);
            std::thread::yield_now();
            put.outcome().is_some()
        });
        assert!(ended && put.outcome() == Some(Ok(())), "{put:?}");
    }
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let packets = sample::packets(40).map(|(packet, _)| {
        let mut bytes = vec![1, 9, 9];
        bytes.extend(packet.to_bytes());
        bytes
    });
    // A put of a function and of a kernel, the steps of a ring, data, verdicts.
    let talks = [
        vec![0, 1, 0, 0, 1, 1, 0, 5, 2, 0, 5, 5, 0],
        vec![0, 1, 0x31, 1, 1, 0x31, 0, 2, 0, 0, 3, 0, 0, 4, 1, 0, 5, 0, 0],
    ];
    packets.chain(talks).collect()
}
