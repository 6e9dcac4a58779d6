//! The suite that every transport passes.

use super::{config, open};
use crate::Ib;
use crate::header::{HEADER_BYTES, Header, MessageKind};
use crate::link::Up;
use gapless_btl::{AmTag, LinkError, PeerId};
use gapless_btl_testkit::conformance::Fixture;

/// Ends at the two ports.
struct Ports;

impl Fixture for Ports {
    type Btl = Ib;

    fn pair(&mut self) -> (Ib, Ib) {
        (open(config(0)), open(config(1)))
    }

    fn process_end(&mut self) -> Option<Ib> {
        let child = std::env::var_os("GAPLESS_CONFORMANCE_CHILD").is_some();
        Some(open(config(u32::from(child))))
    }

    fn deaths_are_silent(&self) -> bool {
        true
    }

    fn cut(&mut self, end: &mut Ib, to: PeerId, variant: u32) -> bool {
        let up: &mut Up = end.links[to.0 as usize].up().expect("the link stands");
        match variant {
            // The adapter ends it, and says so when it is asked; the other end finds no queue pair that answers.
            0 => up.qp.abandon(),
            // This end gives it up, and completions still come.
            1 => end.end(to.0, LinkError::Unreachable { reason: "for a test".to_owned() }),
            _ => return false,
        }
        true
    }

    fn garbage(&mut self, from: &mut Ib, to: PeerId, variant: u32) -> bool {
        let up: &mut Up = from.links[to.0 as usize].up().expect("the link stands");
        let (grant, sequence) = (up.incoming.tell(), up.next_sequence());
        let (kind, tag) = (MessageKind::Message, AmTag(7).0);
        let right = Header { kind, tag, grant, sequence, had: 0, bytes: 4 };
        let (header, body): (Header, &[u8]) = match variant {
            // Grants that cannot be, wrong numbers, lengths that are not there.
            0 => (Header { grant: grant.wrapping_add(1000), ..right }, &[1; 4]),
            1 => (Header { grant: grant.wrapping_sub(1), ..right }, &[1; 4]),
            2 => (Header { sequence: sequence.wrapping_add(1), ..right }, &[1; 4]),
            3 => (Header { sequence: sequence.wrapping_sub(1), ..right }, &[1; 4]),
            4 => (Header { bytes: 5, ..right }, &[1; 4]),
            5 => (Header { bytes: u32::MAX, ..right }, &[1; 4]),
            6 => (Header { kind: MessageKind::Grant, ..right }, &[1; 4]),
            7 => (Header { kind: MessageKind::Farewell, bytes: 0, ..right }, &[]),
            _ => return self.more_garbage(from, to, variant),
        };
        up.send_raw(to.0, &header.write(), body);
        true
    }
}

impl Ports {
    /// What is not even a header.
    fn more_garbage(&mut self, from: &mut Ib, to: PeerId, variant: u32) -> bool {
        let up = from.links[to.0 as usize].up().expect("the link stands");
        let whole = [0xff; HEADER_BYTES];
        let bytes: &[u8] = match variant {
            8 => &[],
            9 => &[0x6b],
            10 => &whole[..HEADER_BYTES - 1],
            11 => &whole,
            12 => &[0; HEADER_BYTES],
            _ => return false,
        };
        up.send_raw(to.0, bytes, &[]);
        true
    }
}

gapless_btl_testkit::conformance!(rxe, Ports);
