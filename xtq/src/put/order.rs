//! What a put asks for, in its box. Bodies of a few bytes lie in it, too.

use super::Retry;
use crate::buffer::{Bytes, Payload};
use crate::device::Short;
use crate::error::XtqError;
use crate::gather::{GatherInto, PayloadBytes};
use crate::packet::{ARGUMENTS_MAX, Command, Packet, PacketError, PacketWords, TaskWork};
use crate::signal::Signal;
use gapless_bml::Rank;
use std::cell::Cell;
use std::fmt;
use std::mem::{replace, take};
use std::time::Duration;

/// What is asked for. It is written where it stays, however a put is built and handed on; a ring that keeps a put takes
/// the box, and gives back that of an earlier one. So a thread mostly has one for its next put.
#[derive(Clone)]
pub struct Order {
    /// Whose task it becomes.
    pub target: Rank,
    /// What the packet says.
    pub command: Command,
    body: Body,
    /// What happens if it is refused for now.
    pub retry: Retry,
    /// How often it is sent, at most.
    pub attempts_max: u32,
    /// Its signal, if it `has_signal`; otherwise one of an earlier put, which the next often has, too.
    signal: Option<Signal>,
    has_signal: bool,
    /// Its end is waited for first.
    pub after: Option<Signal>,
    /// How long it may take.
    pub limit: Option<Duration>,
    /// The name by which it asks for an answer, if it does.
    pub ask: Option<u64>,
}

/// Of a body its lengths, and nothing that an earlier put has left in the box.
impl fmt::Debug for Order {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Order")
            .field("target", &self.target)
            .field("command", &self.command)
            .field("argument_bytes", &self.arguments().len())
            .field("body_bytes", &self.body_bytes())
            .field("retry", &self.retry)
            .field("attempts_max", &self.attempts_max)
            .field("signal", &self.signal())
            .field("after", &self.after)
            .field("limit", &self.limit)
            .field("ask", &self.ask)
            .finish()
    }
}

/// Arguments and payload. Those of a few bytes lie one behind the other; then the others are none.
#[derive(Clone)]
struct Body {
    is_short: bool,
    short: Short,
    arguments: Bytes,
    payload: Payload,
}

impl Body {
    fn none() -> Body {
        Body {
            is_short: true,
            short: Short::none(),
            arguments: Bytes::none(),
            payload: Payload::none(),
        }
    }

    #[inline]
    fn clear(&mut self) {
        if !self.is_short {
            *self = Body::none();
        }
    }

    /// Begins anew. There is none. Bodies come by reference: to be moved, they would be waited for.
    #[inline]
    fn begin(&mut self, arguments: &mut Payload) {
        let is_short = arguments.few().is_some_and(|few| self.short.set_arguments(few));
        if !is_short {
            let arguments = replace(arguments, Payload::none());
            (self.is_short, self.arguments) = (false, arguments.into_one(ARGUMENTS_MAX));
        }
    }

    #[inline]
    fn set_payload(&mut self, payload: &mut Payload) {
        let is_short = self.is_short;
        if !(is_short && payload.few().is_some_and(|few| self.short.set_payload(few))) {
            self.set_long(replace(payload, Payload::none()));
        }
    }

    #[cold]
    fn set_long(&mut self, payload: Payload) {
        if self.is_short {
            let arguments = Payload::from(self.short.arguments()).into_one(ARGUMENTS_MAX);
            (self.is_short, self.arguments) = (false, arguments);
        }
        self.payload = payload;
    }
}

thread_local! {
    /// The box of a put that needs it no more. What it has, at most a signal and the bytes of a short body, is of no use to
    /// anybody.
    static SPARE: Cell<Option<Box<Order>>> = const { Cell::new(None) };
}

impl Order {
    /// An order with these arguments, and nothing else; its command is still to be written.
    #[inline]
    pub(super) fn begin(target: Rank, arguments: &mut Payload) -> Box<Order> {
        let spare = SPARE.try_with(Cell::take).ok().flatten();
        let mut order = spare.unwrap_or_else(Order::empty);
        order.target = target;
        (order.retry, order.attempts_max, order.limit) = (Retry::Never, u32::MAX, None);
        order.body.begin(arguments);
        order
    }

    /// It is not needed any more; its box may be.
    #[inline]
    pub(super) fn lay_aside(mut self: Box<Order>) {
        self.clear_body();
        (self.has_signal, self.after, self.ask) = (false, None, None);
        // A thread that ends has no next put.
        let _ = SPARE.try_with(|spare| spare.set(Some(self)));
    }

    #[inline]
    pub(super) fn set_payload(&mut self, payload: &mut Payload) {
        self.body.set_payload(payload);
    }

    #[inline]
    pub(super) fn set_signal(&mut self, signal: &Signal) {
        self.command.signal = signal.name();
        if !self.signal.as_ref().is_some_and(|left| left.is(signal)) {
            self.signal = Some(signal.clone());
        }
        self.has_signal = true;
    }

    #[cold]
    fn empty() -> Box<Order> {
        let work = TaskWork::Function { arguments: [0; 4] };
        Box::new(Order {
            target: Rank(0),
            command: Command::of(0, 0, work),
            body: Body::none(),
            retry: Retry::Never,
            attempts_max: 0,
            signal: None,
            has_signal: false,
            after: None,
            limit: None,
            ask: None,
        })
    }

    /// Its signal.
    #[inline]
    pub fn signal(&self) -> Option<&Signal> {
        self.signal.as_ref().filter(|_| self.has_signal)
    }

    /// Takes its signal.
    pub fn take_signal(&mut self) -> Option<Signal> {
        self.signal.take().filter(|_| take(&mut self.has_signal))
    }

    /// The signal is told by others.
    #[inline]
    pub(crate) fn leave_signal(&mut self) {
        self.has_signal = false;
    }

    /// Gives up arguments and payload, unless they are short.
    #[inline]
    pub fn clear_body(&mut self) {
        self.body.clear();
    }

    /// Arguments and payload, if they are short.
    #[inline]
    pub(crate) fn short(&self) -> Option<&Short> {
        self.body.is_short.then_some(&self.body.short)
    }

    #[inline]
    /// The task's arguments.
    pub fn arguments(&self) -> &[u8] {
        match self.short() {
            Some(short) => short.arguments(),
            None => self.body.arguments.bytes(),
        }
    }

    #[inline]
    pub(crate) fn payload(&self) -> PayloadBytes<'_> {
        match self.short() {
            Some(short) => PayloadBytes::One(short.payload()),
            None => self.body.payload.part(),
        }
    }

    /// Bytes of the payload.
    #[inline]
    pub fn payload_bytes(&self) -> usize {
        match self.short() {
            Some(short) => short.lengths()[1],
            None => self.body.payload.len(),
        }
    }

    /// Writes the payload into memory of that length.
    pub fn write_payload(&self, memory: &mut [u8]) {
        // Memory takes all.
        let _ = self.payload().write(GatherInto::memory(memory));
    }

    /// Takes arguments and payload; short ones are copied.
    pub(crate) fn take_body(&mut self) -> (Bytes, Payload) {
        let body = &mut self.body;
        if body.is_short {
            let arguments = Payload::from(body.short.arguments()).into_one(ARGUMENTS_MAX);
            return (arguments, body.short.payload().into());
        }
        let none = (Bytes::none(), Payload::none());
        (replace(&mut body.arguments, none.0), replace(&mut body.payload, none.1))
    }

    /// Why no packet can express it.
    ///
    /// # Errors
    /// That.
    #[inline]
    pub(crate) fn check(&self) -> Result<(), XtqError> {
        match self.payload_bytes() {
            bytes if u32::try_from(bytes).is_err() => Err(XtqError::PayloadTooLong { bytes }),
            _ => self.command.check().map_err(|error| self.unfit(error).into()),
        }
    }

    /// The words of its packet, with the length of the payload. It was [checked](Order::check).
    #[inline]
    pub(crate) fn words(&self) -> PacketWords {
        self.command.words(u32::try_from(self.payload_bytes()).unwrap_or(u32::MAX))
    }

    /// Its packet.
    pub fn packet(&self) -> Result<Packet, XtqError> {
        self.check().map(|()| Packet::of_words(self.words()))
    }

    /// Why no packet can express this put. Its field for the arguments' length may be too short for that.
    #[cold]
    fn unfit(&self, error: PacketError) -> PacketError {
        match error {
            PacketError::ArgumentBytes { .. } => {
                PacketError::ArgumentBytes { bytes: self.arguments().len() }
            }
            error => error,
        }
    }

    /// Bytes of arguments and payload.
    pub(crate) fn body_bytes(&self) -> usize {
        // Too many are refused when the packet is made.
        self.payload_bytes().saturating_add(self.arguments().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Launch;
    use crate::put::Put;
    use std::sync::Arc;

    fn kernel(arguments: impl Into<Payload>) -> Put {
        Put::kernel(Rank(7), 3, 4, Launch::linear(1, 1, 0), arguments)
    }

    fn bodies(put: &Put) -> (Vec<u8>, Vec<u8>) {
        (put.order.arguments().to_vec(), put.order.payload().to_vec())
    }

    /// A put may get the box of another one, and has nothing of it.
    #[test]
    fn a_box_that_is_used_again_is_as_a_new_one() {
        let signal = Signal::new(1, Vec::new(), Arc::new(|_| ()));
        let bytes: Vec<u8> = (0..200).collect();
        let pieces = || Payload::pieces([&bytes[..9], &bytes[..8]]);
        let firsts = || {
            let full = kernel(&bytes[..64]).payload(&bytes[..64]).signal(&signal).after(&signal);
            let long = kernel(&bytes[..]).payload(bytes.clone()).within(Duration::ZERO).attempts(3);
            [full.barrier().retry(Retry::InOrder), long, kernel(bytes.clone()).payload(pieces())]
        };
        for first in firsts() {
            let at = std::ptr::from_ref(&*first.order);
            first.lay_aside();
            let put = Put::function(Rank(1), 5, 6, [8, 9]);
            assert_eq!(std::ptr::from_ref(&*put.order), at, "its box is used again");
            assert_eq!(bodies(&put), (Vec::new(), Vec::new()));
            let order = &put.order;
            assert!(order.signal().is_none() && order.after.is_none() && order.limit.is_none());
            assert_eq!((order.target, order.retry), (Rank(1), Retry::Never));
            assert_eq!(order.attempts_max, u32::MAX);
            let work = TaskWork::Function { arguments: [0, 0, 8, 9] };
            let sent = order.packet().unwrap().sent();
            assert_eq!(sent, Ok(Command::of(5, 6, work)));
            put.lay_aside();
        }
    }

    /// Whatever is set again, and wherever it lies, the last one counts.
    #[test]
    fn the_last_body_counts() {
        let bytes: Vec<u8> = (0..200).collect();
        let shared: Arc<[u8]> = bytes.clone().into();
        for arguments in [16, 24, 64, 72] {
            let mut put = kernel(&bytes[..arguments]);
            for (turn, len) in [0, 64, 8, 65, 200, 3, 0, 64].into_iter().enumerate() {
                put = match turn % 3 {
                    0 => put.payload(&bytes[..len]),
                    1 => put.payload(bytes[..len].to_vec()),
                    _ => put.payload(Payload::part_of(&shared, 0..len).unwrap()),
                };
                let expected = (bytes[..arguments].to_vec(), bytes[..len].to_vec());
                assert_eq!(bodies(&put), expected, "{arguments}, turn {turn}");
                assert_eq!(put.order.body_bytes(), arguments + len);
                let mut copy = put.clone();
                let (first, second) = copy.order.take_body();
                assert_eq!((first.bytes().to_vec(), second.to_vec()), expected);
            }
        }
        assert_eq!(Arc::strong_count(&shared), 1, "what was replaced is gone");
    }

    /// A signal that is left in a box is nobody's.
    #[test]
    fn a_signal_is_a_puts_own() {
        let [one, other] = [(); 2].map(|()| Signal::new(1, Vec::new(), Arc::new(|_| ())));
        let is = |put: &Put, signal: &Signal| put.order.signal().is_some_and(|own| own.is(signal));
        for (signal, before) in [(&one, &one), (&other, &one), (&one, &other)] {
            kernel(&[0; 16][..]).signal(before).lay_aside();
            let mut put = kernel(&[0; 16][..]).signal(signal);
            assert!(is(&put, signal) && put.order.command.signal == signal.name());
            put.order.leave_signal();
            assert!(put.order.signal().is_none() && put.order.take_signal().is_none());
            let mut put = put.signal(other_of(signal, [&one, &other]));
            assert!(!is(&put, signal));
            assert!(put.order.take_signal().is_some() && put.order.signal().is_none());
        }
    }

    fn other_of<'s>(signal: &Signal, both: [&'s Signal; 2]) -> &'s Signal {
        both.into_iter().find(|one| !one.is(signal)).expect("there are two")
    }
}
