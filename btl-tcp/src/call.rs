//! A call: from the wish for a link to a connection that both ends have proved.
//!
//! The peer's places are tried one after the other. A place where somebody hangs up before the link stands is tried
//! again a few times: the peer may have been out of room, or have dropped our call for its own.

use crate::card::Card;
use crate::proof::{ANSWER_BYTES, Hello, Keys, Purpose, Talk};
use crate::socket::{self, Socket};
use crate::watch::{Interest, Watch, What};
use crate::wire::{HEADER_BYTES, Header};
use gapless_btl::LinkError;
use rustix::io::Errno;
use std::io::IoSlice;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Attempts at one place, when its listener hangs up or this process is out of descriptors.
const TRIES: u32 = 12;
/// The pause after the first of them; it doubles.
const PAUSE_FIRST: Duration = Duration::from_millis(10);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_millis(500);

enum Stage {
    /// Nothing was begun at the present place.
    Fresh,
    Pausing {
        until: Instant,
    },
    Connecting {
        socket: Socket,
        since: Instant,
    },
    /// The hello has left.
    Greeting {
        socket: Socket,
        talk: Box<Talk>,
        answer: [u8; ANSWER_BYTES],
        got: usize,
    },
    /// The proof has left.
    Proving {
        socket: Socket,
        welcome: [u8; HEADER_BYTES],
        got: usize,
    },
}

/// What a call needs of its transport.
pub(crate) struct Caller<'t> {
    pub(crate) watch: &'t Watch,
    pub(crate) keys: &'t Keys,
    pub(crate) own: &'t Card,
    pub(crate) peer: &'t Card,
    /// The peer's number here.
    pub(crate) id: u32,
    /// How long a host may be silent.
    pub(crate) patience: Duration,
    pub(crate) now: Instant,
}

/// How a call goes.
#[derive(Debug)]
pub(crate) enum Course {
    Going,
    /// The link stands, over this connection.
    Made(Socket),
    /// No place of the peer is left.
    Failed(LinkError),
}

/// A call to one peer.
pub(crate) struct Call {
    places: Vec<SocketAddr>,
    at: usize,
    tries: u32,
    stage: Stage,
    /// Why places failed.
    failures: Vec<String>,
    /// The peer may live where it was not found: some host did not answer, or somebody else did.
    unclear: bool,
}

impl Call {
    /// To these places, in this order.
    pub(crate) fn new(places: Vec<SocketAddr>) -> Call {
        Call { places, at: 0, tries: 0, stage: Stage::Fresh, failures: Vec::new(), unclear: false }
    }

    /// Goes on as far as it can.
    pub(crate) fn go_on(&mut self, caller: &Caller<'_>) -> Course {
        loop {
            let Some(&place) = self.places.get(self.at) else {
                return Course::Failed(self.verdict());
            };
            let step = match std::mem::replace(&mut self.stage, Stage::Fresh) {
                Stage::Pausing { until } if caller.now < until => {
                    self.stage = Stage::Pausing { until };
                    return Course::Going;
                }
                Stage::Fresh | Stage::Pausing { .. } => self.begin(place, caller),
                Stage::Connecting { socket, since } => self.connect(socket, since, caller),
                Stage::Greeting { socket, talk, answer, got } => {
                    self.greet(socket, talk, answer, got, caller)
                }
                Stage::Proving { socket, welcome, got } => {
                    match self.prove(socket, welcome, got, caller) {
                        Step::Made(socket) => return Course::Made(socket),
                        step => step,
                    }
                }
            };
            match step {
                Step::Wait => return Course::Going,
                Step::On | Step::Made(_) => {}
            }
        }
    }

    fn begin(&mut self, place: SocketAddr, caller: &Caller<'_>) -> Step {
        let socket = match Socket::call(place, caller.patience) {
            Ok(socket) => socket,
            Err(error) => return self.fail(error, caller),
        };
        if caller.watch.add(&socket, What::Call(caller.id), Interest::WRITING).is_err() {
            return self.fail(Errno::NOMEM, caller);
        }
        self.stage = Stage::Connecting { socket, since: caller.now };
        Step::On
    }

    fn connect(&mut self, socket: Socket, since: Instant, caller: &Caller<'_>) -> Step {
        match socket.connected() {
            Ok(true) => {}
            Ok(false) if caller.now.duration_since(since) < caller.patience => {
                self.stage = Stage::Connecting { socket, since };
                return Step::Wait;
            }
            Ok(false) => return self.fail(Errno::TIMEDOUT, caller),
            Err(error) => return self.fail(error, caller),
        }
        let Ok(hello) = hello(Purpose::Call, caller.own, caller.peer) else {
            return self.fail(Errno::AGAIN, caller);
        };
        let hello = caller.keys.say(&hello);
        // There is room for it in a fresh connection.
        match socket.write(&[IoSlice::new(&hello)]) {
            Ok(written) if written == hello.len() => {}
            Ok(_) => return self.again("has no room for a greeting", caller),
            Err(error) => return self.fail(error, caller),
        }
        caller.watch.change(&socket, What::Call(caller.id), Interest::READING);
        let talk = Box::new(Talk { hello, cards: [caller.own.digest(), caller.peer.digest()] });
        self.stage = Stage::Greeting { socket, talk, answer: [0; ANSWER_BYTES], got: 0 };
        Step::On
    }

    fn greet(
        &mut self,
        socket: Socket,
        talk: Box<Talk>,
        mut answer: [u8; ANSWER_BYTES],
        mut got: usize,
        caller: &Caller<'_>,
    ) -> Step {
        match self.hear(&socket, &mut answer[got..], caller) {
            Ok(count) => got += count,
            Err(step) => return step,
        }
        if got < ANSWER_BYTES {
            self.stage = Stage::Greeting { socket, talk, answer, got };
            return Step::Wait;
        }
        if !caller.keys.accepts(&talk, &answer) {
            // Whoever listens there does not know the secret: asking again is of no use.
            self.unclear = true;
            return self.next("somebody listens there who does not know the job's secret");
        }
        let proof = caller.keys.prove(&talk, &answer);
        match socket.write(&[IoSlice::new(&proof)]) {
            Ok(written) if written == proof.len() => {}
            Ok(_) => return self.again("has no room for a proof", caller),
            Err(error) => return self.fail(error, caller),
        }
        self.stage = Stage::Proving { socket, welcome: [0; HEADER_BYTES], got: 0 };
        Step::On
    }

    fn prove(
        &mut self,
        socket: Socket,
        mut welcome: [u8; HEADER_BYTES],
        mut got: usize,
        caller: &Caller<'_>,
    ) -> Step {
        match self.hear(&socket, &mut welcome[got..], caller) {
            Ok(count) => got += count,
            Err(step) => return step,
        }
        if got < HEADER_BYTES {
            self.stage = Stage::Proving { socket, welcome, got };
            return Step::Wait;
        }
        if Header::read(welcome, 0) != Ok(Header::Welcome) {
            return self.next("does not welcome a proved caller");
        }
        Step::Made(socket)
    }

    /// Reads no more than what is missing; how many bytes came.
    fn hear(
        &mut self,
        socket: &Socket,
        into: &mut [u8],
        caller: &Caller<'_>,
    ) -> Result<usize, Step> {
        match socket.read_exact(into) {
            Ok(Some(0)) => Err(self.again("hangs up before the link stands", caller)),
            Ok(Some(count)) => Ok(count),
            Ok(None) => Ok(0),
            Err(error) => Err(self.fail(error, caller)),
        }
    }

    /// The system reports an error at the present place.
    fn fail(&mut self, error: Errno, caller: &Caller<'_>) -> Step {
        let passing = socket::is_ours(error) || matches!(error, Errno::CONNRESET | Errno::PIPE);
        if passing {
            return self.again(&error.to_string(), caller);
        }
        self.unclear |= socket::is_silence(error);
        self.next(&error.to_string())
    }

    /// Tries the same place once more, unless that was tried often enough.
    fn again(&mut self, why: &str, caller: &Caller<'_>) -> Step {
        self.tries += 1;
        if self.tries >= TRIES {
            return self.next(why);
        }
        let pause = PAUSE_FIRST.saturating_mul(1 << self.tries.min(10)).min(PAUSE_MAX);
        self.stage = Stage::Pausing { until: caller.now + pause };
        Step::Wait
    }

    /// Gives the present place up.
    fn next(&mut self, why: &str) -> Step {
        self.failures.push(format!("{}: {why}", self.places[self.at]));
        (self.at, self.tries, self.stage) = (self.at + 1, 0, Stage::Fresh);
        Step::On
    }

    fn verdict(&self) -> LinkError {
        let reason = self.failures.join("; ");
        if self.unclear || reason.is_empty() {
            return LinkError::Unreachable { reason };
        }
        LinkError::PeerGone { reason }
    }
}

enum Step {
    /// The next stage may go on at once.
    On,
    /// Nothing more can be done now.
    Wait,
    Made(Socket),
}

/// A greeting to a peer.
///
/// # Errors
/// The system has no randomness.
pub(crate) fn hello(purpose: Purpose, own: &Card, peer: &Card) -> Result<Hello, LinkError> {
    Ok(Hello {
        purpose,
        caller_rank: own.rank,
        callee_rank: peer.rank,
        caller: own.id,
        callee: peer.id,
        nonce: crate::proof::random()?,
    })
}
