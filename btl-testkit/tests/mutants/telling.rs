//! How a broken transport gives what has arrived to whoever polls.

use crate::mutants::broken::Broken;
use crate::mutants::flaws::Flaw;
use gapless_btl::{Event, PeerId, Sink, hand_out};

impl Broken {
    /// As [`hand_out`] does it, but for the flaw.
    pub(crate) fn tell(&mut self, only: Option<PeerId>, sink: &mut dyn Sink) -> usize {
        match (self.flaw, only) {
            (Flaw::IgnoresRoom, _) => self.ready.drain(..).map(|event| sink.event(event)).count(),
            (Flaw::IgnoresOnly, _) => hand_out(&mut self.ready, None, sink),
            (Flaw::NextIsAnyones, Some(_)) => {
                let first = self.ready.iter().find_map(|event| match event {
                    Event::Arrived { from, .. } => Some(*from),
                    _ => None,
                });
                first.map_or(0, |from| hand_out(&mut self.ready, Some(from), sink))
            }
            (Flaw::NextIsTheLoss, Some(_)) => {
                let lost = matches!(self.ready.front(), Some(Event::Lost { .. }));
                hand_out(&mut self.ready, only.filter(|_| !lost), sink)
            }
            (Flaw::NextComesTwice | Flaw::NextLies, Some(peer)) => self.tell_next(peer, sink),
            (
                Flaw::OffersBehindEvents
                | Flaw::TakenComesToo
                | Flaw::RefusedComesTwice
                | Flaw::RefusedIsLost
                | Flaw::RefusedNeedsRoom,
                None,
            ) => self.tell_all(sink),
            _ => hand_out(&mut self.ready, only, sink),
        }
    }

    /// Offers the next message, and leaves it where it is.
    fn tell_next(&mut self, peer: PeerId, sink: &mut dyn Sink) -> usize {
        let Some(Event::Arrived { from, tag, fragment }) = self.ready.front() else { return 0 };
        let taken = *from == peer && sink.fragment(*from, *tag, fragment);
        usize::from(taken || self.flaw == Flaw::NextLies && *from == peer)
    }

    /// Offers and gives what there is, one way or another.
    fn tell_all(&mut self, sink: &mut dyn Sink) -> usize {
        let (mut offers, mut count) = (true, 0);
        while let Some(event) = self.ready.pop_front() {
            let (mut taken, mut copy) = (false, None);
            if let Event::Arrived { from, tag, fragment } = &event
                && (offers || self.flaw == Flaw::OffersBehindEvents)
            {
                let fragment = self.copy(fragment, fragment.len(), false);
                taken = sink.fragment(*from, *tag, &fragment);
                count += usize::from(taken);
                copy = Some(Event::Arrived { from: *from, tag: *tag, fragment });
            }
            match self.flaw {
                Flaw::TakenComesToo if taken => {}
                _ if taken => continue,
                Flaw::RefusedIsLost if copy.is_some() => continue,
                Flaw::RefusedNeedsRoom if copy.is_some() && sink.room() == 0 => continue,
                _ => {}
            }
            if sink.room() == 0 {
                self.ready.push_front(event);
                break;
            }
            offers = false;
            let twice = self.flaw == Flaw::RefusedComesTwice && sink.room() > 1;
            for event in std::iter::once(event).chain(copy.filter(|_| twice)) {
                sink.event(event);
                count += 1;
            }
        }
        count
    }
}
