//! Answers about buffers that are used again for a while. What a choice depends on (links, devices, both layouts) takes
//! longer to gather than a short message takes to send.
//!
//! An answer belongs to one layout, one count, one space and one key; the key holds everything else that the question
//! depends on. Nobody is told when a link or a device changes. So an answer is used a limited number of times, and then
//! found anew. A stale answer costs time, and nothing else.

use gapless_dtype::WeakLayout;
use gapless_engine::Typed;
use gapless_mem::Space;

/// Answers that are remembered: as many neighbours' layouts as a program has in turn.
const KEPT: usize = 8;

/// How often one is used.
const USES: u8 = 64;

/// The last answers.
#[derive(Debug)]
pub(crate) struct Lately<K, A> {
    answers: Vec<Answer<K, A>>,
    /// Which one is replaced next.
    next: usize,
}

#[derive(Debug)]
struct Answer<K, A> {
    /// It keeps the layout's identity from becoming another's.
    layout: WeakLayout,
    count: u64,
    space: Space,
    key: K,
    answer: A,
    uses: u8,
}

impl<K, A> Default for Lately<K, A> {
    fn default() -> Lately<K, A> {
        Lately { answers: Vec::new(), next: 0 }
    }
}

impl<K: PartialEq, A: Copy> Answer<K, A> {
    fn is_for(&self, buffer: &Typed, key: &K) -> bool {
        self.layout.id() == buffer.layout().id()
            && self.count == buffer.count()
            && self.space == buffer.space()
            && self.key == *key
            && buffer.as_pages().is_none()
    }
}

impl<K: PartialEq, A: Copy> Lately<K, A> {
    /// The answer for a buffer like this one; `None`: it is to be found, and [kept](Lately::keep).
    pub(crate) fn again(&mut self, buffer: &Typed, key: &K) -> Option<A> {
        let known = self.answers.iter_mut().find(|one| one.is_for(buffer, key))?;
        known.uses = known.uses.saturating_add(1);
        (known.uses <= USES).then_some(known.answer)
    }

    /// Keeps an answer; none about pages, which differ by more than their layout.
    pub(crate) fn keep(&mut self, buffer: &Typed, key: K, answer: A) {
        if buffer.as_pages().is_some() {
            return;
        }
        let same = self.answers.iter().position(|one| one.is_for(buffer, &key));
        let answer = Answer {
            layout: buffer.layout().downgrade(),
            count: buffer.count(),
            space: buffer.space(),
            key,
            answer,
            uses: 0,
        };
        match same {
            Some(at) => self.answers[at] = answer,
            None if self.answers.len() < KEPT => self.answers.push(answer),
            None => {
                self.answers[self.next % KEPT] = answer;
                self.next = self.next.wrapping_add(1);
            }
        }
    }

    /// Tuning or wishes have changed.
    pub(crate) fn forget(&mut self) {
        self.answers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_dtype::{Datatype, Layout, Primitive};
    use gapless_mem::Region;

    #[test]
    fn an_answer_is_for_one_kind_of_buffer_and_ends_after_some_uses() {
        let layout = || {
            let eight = Datatype::contiguous(8, &Primitive::Byte.into()).unwrap();
            eight.commit().unwrap()
        };
        let device = |device| Space::Device { kind: "fake", device };
        let buffer = |layout: &Layout, count, space| {
            Typed::new(Region::new(space, 1 << 20, 0, 1 << 12), 0, layout, count).unwrap()
        };
        let (one, other) = (layout(), layout());
        let mut lately = Lately::default();
        let first = buffer(&one, 1, device(1));
        assert_eq!(lately.again(&first, &'k'), None);
        lately.keep(&first, 'k', true);
        let others = [
            (buffer(&other, 1, device(1)), 'k'),
            (buffer(&one, 2, device(1)), 'k'),
            (buffer(&one, 1, device(2)), 'k'),
            (first.clone(), 'l'),
        ];
        for (buffer, key) in others {
            assert_eq!(lately.again(&buffer, &key), None);
            lately.keep(&buffer, key, false);
        }
        assert!((0..USES).all(|_| lately.again(&first, &'k') == Some(true)));
        assert!((0..300).all(|_| lately.again(&first, &'k').is_none()), "it is found anew");
        lately.keep(&first, 'k', false);
        assert_eq!(lately.again(&first, &'k'), Some(false));
        for count in 3..3 + KEPT as u64 {
            lately.keep(&buffer(&one, count, device(1)), 'k', true);
        }
        assert_eq!((lately.answers.len(), lately.again(&first, &'k')), (KEPT, None));
        lately.forget();
        assert!(lately.answers.is_empty());
    }

    #[test]
    fn a_layout_that_is_gone_leaves_no_answer() {
        let mut lately = Lately::default();
        let region = Region::new(Space::Device { kind: "fake", device: 1 }, 1 << 20, 0, 1 << 12);
        for bytes in 1..200 {
            let layout = Datatype::contiguous(bytes, &Primitive::Byte.into()).unwrap();
            let buffer = Typed::new(region, 0, &layout.commit().unwrap(), 1).unwrap();
            assert_eq!(lately.again(&buffer, &()), None);
            lately.keep(&buffer, (), bytes);
            assert_eq!(lately.again(&buffer, &()), Some(bytes));
        }
    }
}
