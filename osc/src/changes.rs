//! Changes of numbers by adapters that are under way, of all windows of a process.
//!
//! What a number was comes into a word that is never freed: it is used again once its operation has ended, however long
//! after its call that is.

use gapless_bml::LinkError;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

/// Where a number comes to.
pub(crate) type Word = &'static AtomicU64;

/// Changes under way.
#[derive(Default)]
pub(crate) struct Changes {
    /// Words that no operation writes.
    free: Vec<Word>,
    under_way: HashMap<u64, UnderWay>,
    next: u64,
}

pub(crate) struct UnderWay {
    word: Word,
    end: Option<Result<(), LinkError>>,
    /// Nobody waits for it any more.
    dropped: bool,
}

impl Changes {
    /// A word for an operation, and its number.
    pub(crate) fn enter(&mut self) -> (u64, Word) {
        let word = self.free.pop().unwrap_or_else(|| Box::leak(Box::new(AtomicU64::new(0))));
        self.next += 1;
        let under_way = UnderWay { word, end: None, dropped: false };
        self.under_way.insert(self.next, under_way);
        (self.next, word)
    }

    /// No operation of this number is under way any more.
    pub(crate) fn leave(&mut self, number: u64) -> Option<UnderWay> {
        let gone = self.under_way.remove(&number)?;
        self.free.push(gone.word);
        Some(gone)
    }

    /// A transport says that an operation has ended.
    pub(crate) fn ended(&mut self, number: u64, result: Result<(), LinkError>) {
        match self.under_way.get_mut(&number) {
            Some(one) if !one.dropped => one.end = Some(result),
            Some(_) => drop(self.leave(number)),
            None => {}
        }
    }

    /// What a number was, once its operation has ended.
    pub(crate) fn take(&mut self, number: u64) -> Option<Result<u64, LinkError>> {
        self.under_way.get(&number).filter(|one| one.end.is_some())?;
        let UnderWay { word, end, .. } = self.leave(number)?;
        Some(end?.map(|()| word.load(Ordering::Acquire)))
    }

    /// For tests: how many are under way.
    #[cfg(test)]
    pub(crate) fn under_way(&self) -> usize {
        self.under_way.len()
    }

    /// Nobody waits for an operation any more.
    pub(crate) fn forget(&mut self, number: u64) {
        match self.under_way.get_mut(&number) {
            Some(one) if one.end.is_none() => one.dropped = true,
            _ => drop(self.leave(number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    /// Ends that a transport makes up, tells twice or tells late: no word is given to an operation while another one may
    /// still write it, and nothing is kept that has ended.
    #[test]
    fn ends_of_any_number() {
        let seed = gapless_testkit::seed(5);
        let mut state = seed.max(1);
        let mut random = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 8) % bound
        };
        let mut changes = Changes::default();
        // By number: the word that a transport may write; which have ended; which nobody wants.
        let mut written: HashMap<u64, *const AtomicU64> = HashMap::new();
        let (mut ended, mut forgotten) = (HashSet::new(), HashSet::new());
        let mut most = 0;
        for _ in 0..20_000 {
            let some = |of: u64| changes.next.saturating_sub(of);
            let number = match random(8) {
                0 => random(u64::MAX),
                _ => some(random(12)),
            };
            match random(6) {
                0 | 1 if changes.under_way.len() < 16 => {
                    let (number, word) = changes.enter();
                    let word: *const AtomicU64 = word;
                    assert!(written.values().all(|other| *other != word), "two write one word");
                    written.insert(number, word);
                }
                2 | 3 => {
                    changes.ended(number, Ok(()));
                    if written.remove(&number).is_some() && !forgotten.remove(&number) {
                        ended.insert(number);
                    }
                }
                4 => assert_eq!(changes.take(number).is_some(), ended.remove(&number)),
                _ => {
                    changes.forget(number);
                    if written.contains_key(&number) {
                        forgotten.insert(number);
                    }
                    ended.remove(&number);
                }
            }
            assert_eq!(changes.under_way(), written.len() + ended.len());
            most = most.max(changes.under_way() + changes.free.len());
        }
        assert!(most <= 16 + 1, "words are used again: {most}");
    }
}
