//! Chooses the rail over which a message would arrive first: pure functions of what is under way, of how quickly each
//! rail has delivered so far, and of a clock that the caller reads.
//!
//! A rail's rate is the bytes that its other end has confirmed, over the time in which it was [busy](LAG_BYTES). The
//! transport's promise counts only until the rail was measured. Until then the rail is **on trial**: if another one is
//! known, this one carries no message alone, only copies of a few messages that go over the others. The receiver drops
//! doubles. So a slow rail delays nothing while it is measured. Afterwards each message goes where it would arrive
//! first, and a rail that is many times slower than the others gets none. It is tried again now and then, with copies:
//! one that has recovered comes back.
//!
//! Whether a rail is slow can be seen only while both ends poll. If this end did not look for a while, or if no rail
//! confirmed anything for long, that time does not count, and neither do the bytes that were under way then.
//! A rail whose limit allows bursts after a rest seems quicker than it is to programs that compute between messages.

/// From so many bytes under way on, a rail is busy. Confirmations lag behind by less than that.
const LAG_BYTES: u64 = gapless_btl::LAG_BYTES as u64;
/// From so many bytes under way on, this message included, others are copied to rails on trial.
const COPIED_FROM: u64 = LAG_BYTES;
/// Bytes under way on a rail on trial, at most: two fragments of TCP. Of one that carries messages while none is known, half
/// of that: so the others have room for copies of all.
const TRIAL_ROOM: u64 = 320 << 10;
/// A trial is over when so many bytes were confirmed, or the rail was busy for so long, in nanoseconds.
const TRIAL_BYTES: u64 = 1 << 20;
const TRIAL_NS: u64 = 250_000_000;
/// Later measurements last at least that long and comprise so many bytes, or last as long as this.
const SPAN_NS: u64 = 2_000_000;
const SPAN_BYTES: u64 = 256 << 10;
const STILL_NS: u64 = 250_000_000;
/// When a rail has ended its work between two looks that are further apart, it may have done so long before.
const END_NS: u64 = 2_000_000;
/// Between two looks that are further apart, nobody polled: a wait is shorter.
const GAP_NS: u64 = 60_000_000;
/// If no rail has confirmed anything for so long, the peer may not be polling.
const QUIET_NS: u64 = 250_000_000;
/// A rail that was left out for so long while others were busy is tried again.
const RETRY_NS: u64 = 2_000_000_000;

/// How quickly a rail delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    /// What it is taken to do, in bytes per millisecond; at least 1. What the transport promises, until it is known.
    measured: u64,
    /// It was measured, and is not on trial.
    known: bool,
    /// One-way time of a tiny message, in nanoseconds.
    latency_ns: u64,
    /// Bytes that were ever sent.
    sent: u64,
    /// How many of them were confirmed by the last look, how many of those by no look before, and whether it was busy.
    confirmed: u64,
    new: u64,
    busy: bool,
    /// Bytes under way that do not count when they are confirmed.
    skip: u64,
    /// The measurement that goes on: bytes confirmed, in so many nanoseconds.
    bytes: u64,
    ns: u64,
    /// Bytes confirmed during this trial, measured or not.
    tried: u64,
    /// For how long it had nothing to do while others were busy, in nanoseconds.
    idle_ns: u64,
}

impl Rate {
    pub(crate) fn new(latency_ns: u32, bandwidth_mb_s: u32) -> Rate {
        Rate {
            measured: u64::from(bandwidth_mb_s).max(1) * 1000,
            known: false,
            latency_ns: u64::from(latency_ns),
            sent: 0,
            confirmed: 0,
            new: 0,
            busy: false,
            skip: 0,
            bytes: 0,
            ns: 0,
            tried: 0,
            idle_ns: 0,
        }
    }

    /// So many bytes were sent.
    pub(crate) fn sent(&mut self, bytes: u64) {
        self.sent += bytes;
    }

    /// In bytes per microsecond, at least 1.
    pub(crate) fn measured(&self) -> u64 {
        (self.measured / 1000).max(1)
    }

    /// Whether a copy of a message of `len` bytes helps to measure it.
    pub(crate) fn wants_copy(&self, outstanding: u64, len: u64) -> bool {
        !self.known && has_room(outstanding, len, TRIAL_ROOM)
    }

    /// When a message of `len` bytes would be there, in nanoseconds from now.
    pub(crate) fn there_in_ns(&self, outstanding: u64, len: u64) -> u64 {
        let bytes = outstanding.saturating_add(len);
        self.latency_ns.saturating_add(bytes.saturating_mul(1_000_000) / self.measured)
    }

    /// What was confirmed since the last look; whether it was anything.
    fn note(&mut self, outstanding: u64) -> bool {
        let confirmed = self.sent.saturating_sub(outstanding);
        self.new = confirmed.saturating_sub(self.confirmed);
        self.confirmed = confirmed;
        self.new > 0
    }

    /// A look, so many nanoseconds after the last one; they may not count. `best` is the rate of the best rail that is
    /// known and busy, if there is one.
    fn look(&mut self, gap_ns: u64, counts: bool, outstanding: u64, best: Option<u64>) {
        let was_busy = std::mem::replace(&mut self.busy, outstanding >= LAG_BYTES);
        if counts && (self.busy || !was_busy || gap_ns <= END_NS) {
            self.measure(gap_ns, was_busy);
        } else {
            self.skip = outstanding;
        }
        match self.known {
            true => self.blend(),
            false => self.try_out(best),
        }
        if was_busy || self.busy {
            self.idle_ns = 0;
        } else if self.known && counts && best.is_some() {
            self.idle_ns += gap_ns;
            if self.idle_ns >= RETRY_NS {
                (self.known, self.tried, self.idle_ns) = (false, 0, 0);
                (self.bytes, self.ns) = (0, 0);
            }
        }
    }

    /// Adds what was confirmed, and the time, to the measurement that goes on.
    fn measure(&mut self, gap_ns: u64, was_busy: bool) {
        let skipped = self.new.min(self.skip);
        let is_old = self.skip > 0;
        self.skip -= skipped;
        let new = self.new - skipped;
        if !self.known {
            self.tried += new;
        }
        if was_busy && !is_old {
            self.bytes += new;
            self.ns += gap_ns;
        }
    }

    /// Ends a measurement of a rail that is known.
    fn blend(&mut self) {
        if (self.bytes >= SPAN_BYTES && self.ns >= SPAN_NS) || self.ns >= STILL_NS {
            self.measured = (self.measured + self.seen()).div_ceil(2);
            self.know();
        }
    }

    /// Ends a trial.
    fn try_out(&mut self, best: Option<u64>) {
        if self.bytes >= TRIAL_BYTES || self.ns >= TRIAL_NS {
            self.measured = self.seen();
            self.know();
        } else if self.tried >= 2 * TRIAL_BYTES {
            // It was never behind: it is as quick as the one whose messages were copied, or more. If there is none, it is
            // taken at its promise, until it is busy.
            self.measured = best.unwrap_or(self.measured);
            self.know();
        }
    }

    /// In bytes per millisecond.
    fn seen(&self) -> u64 {
        (self.bytes.saturating_mul(1_000_000) / self.ns.max(1)).max(1)
    }

    fn know(&mut self) {
        (self.known, self.bytes, self.ns) = (true, 0, 0);
    }
}

/// When the rails to a peer were looked at.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    last_ns: u64,
    /// For how long no rail has confirmed anything although one was busy, in nanoseconds.
    quiet_ns: u64,
}

impl Looks {
    /// Looks at what all rails to a peer have confirmed by now. Gives whether anything is under way.
    pub(crate) fn look<S: AsRef<Rate> + AsMut<Rate>>(
        &mut self,
        strands: &mut [S],
        now_ns: u64,
        outstanding: impl Fn(&S) -> u64,
    ) -> bool {
        let gap_ns = now_ns.saturating_sub(self.last_ns);
        self.last_ns = now_ns;
        let (mut heard, mut busy, mut best, mut under_way) = (false, false, None, false);
        for strand in &mut *strands {
            let outstanding = outstanding(strand);
            under_way |= outstanding > 0;
            let rate = strand.as_mut();
            heard |= rate.note(outstanding);
            busy |= rate.busy;
            best = best.max(Some(rate.measured).filter(|_| rate.known && rate.busy));
        }
        self.quiet_ns = if heard || !busy { 0 } else { self.quiet_ns.saturating_add(gap_ns) };
        let counts = gap_ns <= GAP_NS && self.quiet_ns <= QUIET_NS;
        for strand in strands {
            let outstanding = outstanding(strand);
            strand.as_mut().look(gap_ns, counts, outstanding, best);
        }
        under_way
    }
}

/// The rail by which a message of `len` bytes would be there first, of those whose bit in `tried` is not set. `weigh` may
/// prefer some.
pub(crate) fn best<S: AsRef<Rate>>(
    strands: &[S],
    tried: u64,
    (len, measured): (u64, bool),
    outstanding: impl Fn(&S) -> u64,
    weigh: impl Fn(&S, u64) -> u64,
) -> Option<usize> {
    let left = || strands.iter().enumerate().filter(|(at, _)| tried & (1 << (at % 64)) == 0);
    let any_known = left().any(|(_, it)| it.as_ref().known);
    // While none is known, the one that has confirmed most goes ahead, and the others have copies.
    let ahead = left().rev().max_by_key(|(_, it)| it.as_ref().tried).map(|(at, _)| at);
    let may = left().filter_map(|(at, it)| {
        let (rate, outstanding) = (it.as_ref(), outstanding(it));
        let may = if any_known {
            rate.known
        } else {
            !measured || (Some(at) == ahead && has_room(outstanding, len, TRIAL_ROOM / 2))
        };
        may.then(|| (at, weigh(it, rate.there_in_ns(outstanding, len))))
    });
    may.min_by_key(|&(_, ns)| ns).map(|(at, _)| at)
}

/// Whether a further message has room where so much may be under way. It always has if what is under way may have come.
fn has_room(outstanding: u64, len: u64, room: u64) -> bool {
    outstanding < LAG_BYTES || outstanding.saturating_add(len) <= room
}

/// Whether messages are copied to rails on trial while the rail that carries them has so much under way.
pub(crate) fn copies(outstanding: u64) -> bool {
    outstanding >= COPIED_FROM
}

#[cfg(test)]
mod tests;
