//! Which of several rails is near to the memory that a message lies in.

use gapless_mem::{Device, Space};

/// What lies between a rail's adapter and a device: the least is the nearest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Nearness {
    /// A bridge or switch of PCI Express: data need not pass the processor.
    Switch,
    /// One root of PCI Express.
    Root,
    /// The processor's buses, in one NUMA node.
    Node,
    /// The way between processors.
    Far,
}

impl Nearness {
    /// How much longer a rail may take than the nearest one before that is preferred, in sixteenths. So rails that wait
    /// for nothing are chosen by their nearness, and all are used where messages queue.
    const fn allowance(self) -> u64 {
        match self {
            Nearness::Switch => 0,
            Nearness::Root => 1,
            Nearness::Node => 2,
            Nearness::Far => 4,
        }
    }

    /// A time on such a rail, as it is compared with those on others.
    const fn weighed(self, ns: u64) -> u64 {
        ns.saturating_add((ns / 16).saturating_mul(self.allowance()))
    }
}

/// Says how near a rail, by its name, is to a device; `None` if that is not known.
pub type Judge = Box<dyn Fn(&str, &dyn Device) -> Option<Nearness> + Send + Sync>;

/// What is known of rails and spaces.
#[derive(Default)]
pub(crate) struct Near {
    judge: Option<Judge>,
    known: Vec<(usize, Space, Nearness)>,
}

impl Near {
    pub(crate) fn judge_by(&mut self, judge: Judge) {
        self.judge = Some(judge);
    }

    /// Asks how near a rail is to a device.
    pub(crate) fn ask(&mut self, (at, rail): (usize, &str), device: &dyn Device) {
        let nearness = self.judge.as_ref().and_then(|judge| judge(rail, device));
        if let Some(nearness) = nearness {
            tracing::debug!(rail, device = device.properties().name, ?nearness, "judged");
            self.known.push((at, device.space(), nearness));
        }
    }

    /// Forgets what was said of a space.
    pub(crate) fn forget(&mut self, space: Space) {
        self.known.retain(|(_, of, _)| *of != space);
    }

    /// What was said of a rail and a space.
    pub(crate) fn of(&self, rail: usize, space: Space) -> Option<Nearness> {
        let known = self.known.iter().find(|(known, of, _)| (*known, *of) == (rail, space));
        known.map(|(_, _, nearness)| *nearness)
    }

    /// A time on a rail, as it is compared with those on others for a message that lies in `space`. A rail of which
    /// nothing is known counts as the nearest.
    pub(crate) fn weighed(&self, rail: usize, space: Option<Space>, ns: u64) -> u64 {
        let known = space.and_then(|space| self.of(rail, space));
        known.map_or(ns, |nearness| nearness.weighed(ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::fake::FakeDevice;

    #[test]
    fn the_nearer_rail_is_preferred_until_it_is_much_busier() {
        let all = [Nearness::Switch, Nearness::Root, Nearness::Node, Nearness::Far];
        let (gpu, other) = (FakeDevice::new(0), FakeDevice::new(1));
        let mut near = Near::default();
        near.ask((7, "early"), &gpu);
        let of = move |rail: &str| rail.parse::<usize>().ok().and_then(|at| all.get(at).copied());
        near.judge_by(Box::new(move |rail, device| {
            of(rail).filter(|_| device.space() == Space::Device { kind: "fake", device: 0 })
        }));
        for (at, rail) in ["0", "1", "2", "3", "strange"].into_iter().enumerate() {
            near.ask((at, rail), &gpu);
            near.ask((at, rail), &other);
        }
        let times = |space| [0, 1, 2, 3, 4, 7].map(|rail| near.weighed(rail, space, 1600));
        assert_eq!(times(Some(gpu.space())), [1600, 1700, 1800, 2000, 1600, 1600]);
        assert_eq!(times(Some(other.space())), [1600; 6]);
        assert_eq!(times(None), [1600; 6]);
        assert!(all.is_sorted());
        assert_eq!(near.weighed(3, Some(gpu.space()), u64::MAX), u64::MAX);
    }
}
