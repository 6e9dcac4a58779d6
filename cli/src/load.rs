//! How busy this machine is with other work: processes that poll need processors of their own, and figures that are
//! measured beside other work mean little.

use rustix::thread::sched_getaffinity;
use std::fmt;
use std::time::Duration;

/// How long it is looked at.
const LOOK: Duration = Duration::from_millis(300);

/// As many processors may be busy while a machine still counts as idle: its services, and this look.
const IDLE: f64 = 0.4;

/// Of the processors that this process may use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Load {
    /// How many are busy, on average.
    pub(super) busy: f64,
    pub(super) processors: u32,
}

impl Load {
    /// Looks for a moment, in which this process does nothing; `None` if the system does not tell.
    pub(super) fn look() -> Option<Load> {
        let allowed = sched_getaffinity(None).ok()?;
        let read = || {
            let text = std::fs::read_to_string("/proc/stat").ok()?;
            Some(ticks(&text, |processor| allowed.is_set(processor)))
        };
        let before = read()?;
        std::thread::sleep(LOOK);
        Load::between(before, read()?)
    }

    #[expect(clippy::cast_precision_loss, reason = "of a moment")]
    fn between(before: Ticks, after: Ticks) -> Option<Load> {
        let all = after.all.checked_sub(before.all).filter(|all| *all > 0)?;
        let busy = after.busy.saturating_sub(before.busy).min(all) as f64 / all as f64;
        Some(Load { busy: busy * f64::from(after.processors), processors: after.processors })
    }

    /// Whether so many processes would have processors of their own.
    pub(super) fn leaves(&self, processes: u32) -> bool {
        f64::from(self.processors) - self.busy >= f64::from(processes) - IDLE
    }
}

impl fmt::Display for Load {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Load { busy, processors } = self;
        let plural = if *processors == 1 { "" } else { "s" };
        write!(f, "{busy:.1} of {processors} processor{plural} busy with other work")
    }
}

/// Time that some processors have spent since the machine was started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Ticks {
    busy: u64,
    all: u64,
    processors: u32,
}

/// Those of the processors that are `allowed`, out of the text of `/proc/stat`. What a hypervisor gave to others counts
/// as busy.
fn ticks(text: &str, allowed: impl Fn(usize) -> bool) -> Ticks {
    // user nice system idle iowait irq softirq steal; what follows is counted in the first two.
    const COUNTED: usize = 8;
    const WAITING: [usize; 2] = [3, 4];
    let mut sum = Ticks::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let number = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        if !number.is_some_and(&allowed) {
            continue;
        }
        sum.processors += 1;
        for (at, ticks) in
            words.map_while(|word| word.parse::<u64>().ok()).take(COUNTED).enumerate()
        {
            sum.all += ticks;
            sum.busy += if WAITING.contains(&at) { 0 } else { ticks };
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_work_is_seen_on_the_processors_that_may_be_used() {
        let text = |busy: [u64; 3]| {
            let line = |(at, busy): (usize, u64)| {
                format!("cpu{at} {busy} 0 0 {} 5 0 0 0 7 7\n", 1000 - busy)
            };
            let lines: String = busy.into_iter().enumerate().map(line).collect();
            format!("cpu  9 9 9 9\n{lines}intr 5 6\n")
        };
        let of = |busy| ticks(&text(busy), |processor| processor != 2);
        assert_eq!(of([10, 20, 30]), Ticks { busy: 30, all: 2010, processors: 2 });
        let line = |all, busy| Ticks { busy, all, processors: 2 };
        let load = Load::between(line(0, 0), line(100, 80)).unwrap();
        assert_eq!(load.to_string(), "1.6 of 2 processors busy with other work");
        assert!(!load.leaves(2) && !load.leaves(1));
        let idle = Load::between(line(0, 0), line(100, 10)).unwrap();
        assert!(idle.leaves(2) && !idle.leaves(3));
        // A system that counts nothing.
        assert_eq!(Load::between(line(7, 7), line(7, 7)), None);
    }
}
