//! What comes over TCP: addresses that processes publish, greetings of unauthenticated callers, and the frames of a
//! peer, in pieces of any size, with sinks that have room now and then.
//!
//! Frames are compared with a slow reader: the messages before the first wrong header come, once each, intact and in
//! order, and nothing else does.

#[cfg(fuzzing)]
use crate::input::Input;
#[cfg(fuzzing)]
use gapless_btl::{AmTag, Event, Fragment, PeerId, Short, Sink};
#[cfg(fuzzing)]
use gapless_btl_tcp::fuzzing::{Stream, address, header, hello, honest, message, messages};

/// Most steps of one stream.
#[cfg(fuzzing)]
const STEPS: usize = 256;
/// Turns in which a stream that has ended is read to its end.
#[cfg(fuzzing)]
const TURNS: usize = 1000;
/// Longest message, in bytes: longer ones have wrong headers.
#[cfg(fuzzing)]
const FRAGMENT: usize = 3000;

/// Takes messages, or refuses them, as the input says.
#[cfg(fuzzing)]
#[derive(Default)]
struct Moody {
    /// In both phases.
    came: Vec<(u8, Vec<u8>)>,
    takes: bool,
    room: usize,
}

#[cfg(fuzzing)]
impl Sink for Moody {
    fn short(&mut self, _: PeerId, tag: AmTag, message: Short<'_>) -> bool {
        if self.takes {
            let words = message.words().iter().flat_map(|word| word.to_ne_bytes());
            self.came.push((tag.0, words.take(message.len()).collect()));
        }
        self.takes
    }

    fn fragment(&mut self, _: PeerId, tag: AmTag, fragment: &Fragment) -> bool {
        if self.takes {
            self.came.push((tag.0, fragment.to_vec().expect("host memory")));
        }
        self.takes
    }

    fn event(&mut self, event: Event) {
        self.room = self.room.checked_sub(1).expect("only while there is room");
        self.came.extend(message(event));
    }

    fn room(&self) -> usize {
        self.room
    }
}

/// A stream: frames that are right, or bytes as they are; written and read in turns.
#[cfg(fuzzing)]
fn frames(input: &mut Input<'_>) {
    let Some(mut stream) = Stream::new(FRAGMENT) else { return };
    let (mut said, mut sink) = (Vec::new(), Moody::default());
    let mut over = None;
    for _ in 0..STEPS {
        if input.is_over() || over.is_some() {
            break;
        }
        let what = input.byte();
        let bytes = match what % 4 {
            // As they are: headers, and the bodies of what was begun.
            0 => {
                let len = usize::from(input.byte());
                input.take(len).to_vec()
            }
            // A frame that is right, whole or cut short.
            1 | 2 => {
                let (tag, len) = (input.byte(), usize::from(input.short()) % (FRAGMENT + 1));
                let body = (0..len).map(|at| (at ^ len).to_le_bytes()[0]);
                let mut bytes: Vec<u8> = header(tag, len).into_iter().chain(body).collect();
                if what & 4 != 0 {
                    bytes.truncate(usize::from(input.short()) % (bytes.len() + 1));
                }
                bytes
            }
            _ => {
                (sink.takes, sink.room) = (what & 4 != 0, usize::from(what >> 3) % 4);
                over =
                    stream.receive(&mut sink, 1 + usize::from(input.byte() % 5), what & 128 != 0);
                Vec::new()
            }
        };
        let written = stream.write(&bytes);
        said.extend_from_slice(&bytes[..written]);
    }
    stream.end();
    (sink.takes, sink.room) = (true, usize::MAX);
    for _ in 0..TURNS {
        if over.is_none() {
            over = stream.receive(&mut sink, 64, true);
        }
    }
    assert!(over.is_some(), "a stream that has ended is read to its end");
    assert!(sink.came == messages(&said, FRAGMENT), "messages are not what was said");
}

#[cfg(fuzzing)]
pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    match input.byte() % 4 {
        0 => address(input.0),
        1 => hello(input.0, false),
        2 => hello(input.0, true),
        _ => frames(&mut input),
    }
}

#[cfg(fuzzing)]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let [greeting, address] = honest();
    let with = |first: u8, rest: &[u8]| [&[first], rest].concat();
    let frame = |tag: u8, body: &[u8]| [&header(tag, body.len())[..], body].concat();
    let raw =
        |bytes: &[u8]| with(3, &[&[0, bytes.len().to_le_bytes()[0]], bytes, &[7, 4]].concat());
    vec![
        with(0, &address),
        with(1, &greeting),
        with(2, &greeting),
        raw(&frame(7, b"")),
        raw(&frame(7, b"a message")),
        raw(&[frame(1, b"one"), frame(2, &[9; 200])].concat()),
        // Whole ones of three lengths, read with room and without; then one that is cut short.
        vec![
            3, 1, 5, 10, 0, 1, 6, 100, 0, 3, 4, 31, 2, 1, 7, 0, 8, 15, 4, 255, 4, 5, 9, 0, 9, 7, 1,
        ],
        // More long ones than there are buffers.
        vec![3, 1, 1, 0, 10, 1, 2, 0, 10, 1, 3, 0, 10, 1, 4, 0, 10, 27, 4, 27, 4, 7, 4, 135, 4],
    ]
}

/// Without the entry points there is nothing to enter.
#[cfg(not(fuzzing))]
pub(crate) fn run(_: &[u8]) {}

#[cfg(not(fuzzing))]
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    vec![Vec::new()]
}
