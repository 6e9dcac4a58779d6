//! What a peer says to a process that has windows: heads and payloads of every kind, made up, changed and out of turn, to an
//! ordinary window, a dynamic one, and one that the peer is not in. Meanwhile the process puts, gets, adds and locks at the
//! peer, which answers as it likes. Nothing outside the windows changes, calls end, and once the peer is given up the process
//! still has its locks.

use crate::input::Input;
use gapless_bml::{Bml, Handler, LinkError, Rank, RankEvent};
use gapless_btl::Token;
use gapless_dtype::{Datatype, Layout, Primitive};
use gapless_engine::{HostEngine, ReduceOp, Typed};
use gapless_mem::{Atomics, Lease, Region, Space, Words};
use gapless_osc::{
    AM_TAG, AccessKind, Driver, Exposure, Flavor, Header, Lock, Member, Osc, Place, Window,
    WindowError,
};
use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Most messages of one run.
const MESSAGES: usize = 48;
/// Turns of a wait, and those in which everything ends once the peer is gone.
const PATIENCE: usize = 12;
const TURNS: usize = 1000;
/// What lies around the windows, and words of each.
const AROUND: u64 = 77;
const WORDS: usize = 16;
/// Bytes before the payload, and how many kinds there are.
const HEAD_BYTES: usize = 64;
const KINDS: u8 = 13;
/// Answers and credit, whose count is what they say to be done.
const ANSWER: u8 = 12;

/// Nothing else arrives.
struct Deaf;

impl Handler for Deaf {
    fn handle(&mut self, _: &mut Bml, _: RankEvent) {}
}

/// Memory with a window in the middle, behind the words of its lock.
struct WindowMemory {
    all: Arc<Vec<AtomicU64>>,
    lock: usize,
}

impl WindowMemory {
    fn new() -> WindowMemory {
        let lock = usize::try_from(Header::bytes(2, 1)).expect("a few words") / 8;
        let word = |at: usize| AtomicU64::new(if at < lock { 0 } else { AROUND });
        WindowMemory { all: Arc::new((0..lock + 3 * WORDS).map(word).collect()), lock }
    }

    fn lease(&self, at: usize, words: usize) -> Lease {
        let start = self.all.as_ptr().expose_provenance() as u64;
        let region = Region::new(Space::Host, start, 8 * at as u64, 8 * words as u64);
        #[allow(unsafe_code, reason = "vouches for memory of this file")]
        // SAFETY: the list is kept by the Arc.
        unsafe {
            Lease::new(region, Arc::clone(&self.all) as _)
        }
    }

    #[allow(unsafe_code, reason = "vouches for memory of this file")]
    fn window(&self) -> Atomics {
        // SAFETY: it is initialised, and touched by atomics only.
        unsafe { Atomics::new(self.lease(self.lock + WORDS, WORDS)) }.expect("memory of the host")
    }

    #[allow(unsafe_code, reason = "vouches for memory of this file")]
    fn exposure(&self) -> Exposure {
        // SAFETY: as above.
        let words = unsafe { Words::new(self.lease(0, self.lock)) }.expect("memory of the host");
        Exposure::new(self.window(), Header::new(words, 2, 1).expect("a lock of two"))
    }

    fn check(&self) {
        let around =
            self.all[self.lock..][..WORDS].iter().chain(&self.all[self.lock + 2 * WORDS..]);
        let changed = around.map(|word| word.load(Ordering::Relaxed)).find(|word| *word != AROUND);
        assert_eq!(changed, None, "a word that is in no window");
    }
}

/// A process with windows, and a bare transport behind rank 1.
struct Pair<'i> {
    bmls: RefCell<(Bml, Bml)>,
    osc: Osc,
    said: RefCell<Said<'i>>,
}

/// What the rogue says.
struct Said<'i> {
    input: Input<'i>,
    sequence: u32,
    left: usize,
    /// Where the dynamic window's memory is.
    address: u64,
}

/// A layout with gaps, flattened.
fn flat() -> &'static [u8] {
    static FLAT: OnceLock<Vec<u8>> = OnceLock::new();
    FLAT.get_or_init(|| {
        let double = Datatype::from(Primitive::Double);
        let gaps = Datatype::vector(3, 1, 2, &double).expect("a plain vector");
        gaps.commit().expect("it commits").flatten()
    })
}

impl Said<'_> {
    /// A message that is nearly right, or no message at all.
    fn next(&mut self) -> Option<Vec<u8>> {
        if self.input.is_over() || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let input = &mut self.input;
        let (how, code) = (input.byte(), input.byte());
        if how == u8::MAX {
            let len = usize::from(code);
            return Some(input.take(len).to_vec());
        }
        let kind = 1 + code % if how & 128 == 0 { KINDS } else { 16 };
        // It is rank 1 of the ordinary window, rank 0 of the dynamic one, and no member of the third one.
        let which = how >> 4 & 3;
        let (window, rank) = match which {
            1 => (1, 0),
            3 => (u32::from(input.byte() & 3), u32::from(input.byte() & 3)),
            _ => (0, 1),
        };
        let aligned = how & 1 == 0;
        let length = if aligned { 8 * u64::from(input.byte() & 7) } else { input.number() };
        let base = if which == 1 { self.address } else { 0 };
        let origin = if aligned { base + 8 * u64::from(input.byte() & 31) } else { input.number() };
        let (start, count) = if aligned { (0, length) } else { (input.number(), input.number()) };
        let (mut start, mut count, layout) = (start, count, u32::from(how >> 1 & 1));
        let mut bytes = match how >> 2 & 3 {
            0 if kind == 10 => flat().to_vec(),
            0 | 1 => vec![code; usize::try_from(length).unwrap_or(0).min(4096)],
            2 => vec![code; usize::try_from(2 * (length & 0xff)).unwrap_or(0)],
            _ => input.take(usize::from(code)).to_vec(),
        };
        if kind == 10 && how >> 2 & 3 == 0 {
            (start, count) = (0, bytes.len() as u64);
            if let Some(byte) = bytes.get_mut(usize::from(how)) {
                *byte ^= code & 1;
            }
        }
        if kind >= ANSWER && aligned {
            count = u64::from(input.byte());
        }
        let token = u64::from(input.byte() & 15);
        let (op, primitive, flag) = (input.byte() & 15, input.byte() % 42, input.byte() & 7);
        let sequence = match how & 64 {
            0 => self.sequence,
            _ => self.sequence.wrapping_add(u32::from(input.byte() & 3)),
        };
        self.sequence = self.sequence.wrapping_add(u32::from(sequence == self.sequence));
        let mut message = vec![kind, op, primitive, flag];
        message.extend([sequence, window, rank].iter().flat_map(|word| word.to_le_bytes()));
        message.extend([token, origin].iter().flat_map(|word| word.to_le_bytes()));
        message.extend([layout, u32::from(code)].iter().flat_map(|word| word.to_le_bytes()));
        message.extend([count, start, length].iter().flat_map(|word| word.to_le_bytes()));
        debug_assert_eq!(message.len(), HEAD_BYTES);
        message.extend(bytes);
        Some(message)
    }
}

impl Pair<'_> {
    /// The rogue says something, if it has something left to say.
    fn turn(&self) {
        let message = self.said.borrow_mut().next();
        let mut bmls = self.bmls.borrow_mut();
        let (honest, rogue) = &mut *bmls;
        if let Some(message) = message
            && let Ok(mut slot) = rogue.reserve(Rank(0), message.len())
        {
            slot.write(0, &message).expect("as long as was asked for");
            rogue.send(slot, AM_TAG, Token::NONE);
        }
        honest.poll(&mut Deaf);
        self.osc.advance(honest);
        rogue.poll(&mut Deaf);
    }
}

/// Waits for a while: the peer owes nothing.
impl Driver for &Pair<'_> {
    type Error = WindowError;

    fn until<T>(
        &self,
        _: bool,
        _: impl Fn() -> Option<u32>,
        mut step: impl FnMut(&mut Bml) -> Option<T>,
    ) -> Result<T, WindowError> {
        for _ in 0..PATIENCE {
            if let Some(done) = step(&mut self.bmls.borrow_mut().0) {
                return Ok(done);
            }
            self.turn();
        }
        Err(WindowError::Transport { why: "the peer does not answer".to_owned() })
    }

    fn progress(&self) {
        self.turn();
    }
}

/// What the process does itself at the peer. Whatever becomes of it, it ends.
fn act(pair: &Pair<'_>, window: &mut Window, what: u8) {
    static NUMBERS: OnceLock<Layout> = OnceLock::new();
    let numbers = NUMBERS
        .get_or_init(|| Datatype::from(Primitive::Int64).commit().expect("a basic type commits"));
    let kind = if what & 8 == 0 { Lock::Shared } else { Lock::Exclusive };
    if window.lock(&pair, 1, kind).is_err() && window.lock_unchecked(1, Lock::Shared).is_err() {
        return;
    }
    let region = Region::new(Space::Host, 0, 0, 32);
    let origin = Typed::new(region, 0, numbers, 4).expect("as long as it says");
    let at = Place::at(0);
    let Ok(access) = window.access("fuzz", (1, &at), &origin, AccessKind::Change) else { return };
    let mut found = [0; 32];
    let _ = match what % 4 {
        0 => window.put(&pair, &access, 0..32, &found),
        1 => window.get(&pair, &access, 0..32, &mut found),
        2 => {
            let sum = (&access, ReduceOp::Sum);
            window
                .start_get_accumulate(&pair, sum, (&origin, &at), &found)
                .and_then(|reading| reading.wait(&pair).map(drop))
        }
        _ => window.accumulate(&pair, (&access, ReduceOp::Sum), (&origin, &at), &found),
    };
    let _ = window.flush(&pair, 1);
    let _ = window.unlock(&pair, 1);
}

pub(crate) fn run(bytes: &[u8]) {
    let mut input = Input(bytes);
    let acts = [input.byte(), input.byte()];
    let [mut bml, rogue] = crate::ends::two();
    let osc = Osc::register(&mut bml).expect("nobody has the tag");
    let memory = [WindowMemory::new(), WindowMemory::new(), WindowMemory::new()];
    let member = |process, own: &WindowMemory| Member {
        process,
        window: process,
        bytes: 8 * WORDS as u64,
        unit: 1,
        misalignment: 0,
        mapped: (process == 0).then(|| own.exposure()),
        device: None,
        numbers: None,
        kernel: 0,
    };
    let window = |at: usize, processes: &[u32], rank, flavor| {
        let own = memory[at].exposure();
        let handle = osc.host(own.clone(), processes, rank);
        let members = processes.iter().map(|process| member(*process, &memory[at])).collect();
        Window::new(handle, rank, flavor, own, (members, Arc::new(HostEngine)))
    };
    let mut plain = window(0, &[0, 1], 0, Flavor::Plain);
    let dynamic = window(1, &[1, 0], 1, Flavor::Dynamic);
    let others = window(2, &[0], 0, Flavor::Plain);
    let address = dynamic.attach(memory[1].window()).unwrap_or(0);
    let said = RefCell::new(Said { input, sequence: 0, left: MESSAGES, address });
    let pair = Pair { bmls: RefCell::new((bml, rogue)), osc: osc.clone(), said };
    for what in acts {
        act(&pair, &mut plain, what);
    }
    for _ in 0..MESSAGES {
        pair.turn();
        if pair.said.borrow().left == 0 || pair.said.borrow().input.is_over() {
            break;
        }
    }
    memory.iter().for_each(WindowMemory::check);
    let why = LinkError::Corrupt { what: "the run ends".to_owned() };
    pair.bmls.borrow_mut().0.give_up(Rank(1), why);
    (0..PATIENCE).for_each(|_| pair.turn());
    // Of the third window the rogue has nothing.
    others.lock(&&pair, 0, Lock::Exclusive).expect("nobody else has it");
    others.unlock(&&pair, 0).expect("it has it");
    drop((plain, dynamic, others));
    (0..TURNS).find(|_| {
        pair.turn();
        !osc.is_busy()
    });
    assert!(!osc.is_busy(), "something waits for a peer that is gone");
    memory.iter().for_each(WindowMemory::check);
}

pub(crate) fn seeds() -> Vec<Vec<u8>> {
    // Each kind, aligned and not, to each window; then in a row.
    let one = |how: u8, kind: u8| vec![how, kind, 3, 2, 9, 7, 5, 16, 3, 1, 4, 8];
    let hows = [0, 1, 2, 16, 32, 48, 4, 8];
    let alone = hows.into_iter().flat_map(|how| {
        (0..KINDS).map(move |kind| [vec![how, kind], one(how, kind), one(how, 6)].concat())
    });
    let row: Vec<u8> = (0..KINDS).flat_map(|kind| one(0, kind)).collect();
    let answers: Vec<u8> = (0..12).flat_map(|_| one(0, ANSWER - 1)).collect();
    let layout: Vec<u8> = [one(2, 9), one(2, 0), one(2, 1), one(2, 10)].concat();
    let rows = [row, answers, layout].map(|row| [vec![1, 2], row].concat());
    alone.chain(rows).collect()
}
