//! Several ranks in one thread, joined by loopback transports, and collectives of theirs.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Poll;

use gapless_bml::{Bml, Rank};
use gapless_btl::Btl;
use gapless_btl::loopback::{self, Hub, Loopback};
use gapless_btl_testkit::trace::{CallOutcome, Record, Trace};
use gapless_coll::execute::between;
use gapless_coll::{CollError, Executor, Sequencer};
use gapless_engine::{Engine, HostEngine};
use gapless_pml::{Comm, CommRequest, Config, Pml, PmlError};

/// Turns without an end after which a test gives up.
const TURNS_MAX: u32 = 200_000;

pub(crate) struct Job {
    pub(crate) ranks: Vec<Option<Pml>>,
}

impl Job {
    pub(crate) fn new(size: u32) -> Job {
        Job::with(size, &Config::default())
    }

    pub(crate) fn with(size: u32, config: &Config) -> Job {
        Job::over(size, config, &loopback::Config::default())
    }

    /// Whose ranks cannot map each other's memory.
    pub(crate) fn unmapped(size: u32) -> Job {
        let transport = loopback::Config { mapped: false, ..loopback::Config::default() };
        Job::over(size, &Config::default(), &transport)
    }

    fn over(size: u32, config: &Config, transport: &loopback::Config) -> Job {
        let host: Arc<dyn Engine> = Arc::new(HostEngine);
        Job::built((0..size).map(|_| Arc::clone(&host)).collect(), config, |hub| {
            Box::new(Loopback::with(hub, transport.clone()))
        })
    }

    /// Whose transports tell of each call by name.
    pub(crate) fn watched(size: u32, tell: impl Fn(&'static str) + Clone + Send + 'static) -> Job {
        let host: Arc<dyn Engine> = Arc::new(HostEngine);
        let engines = (0..size).map(|_| Arc::clone(&host)).collect();
        Job::built(engines, &Config::default(), |hub| {
            let tell = tell.clone();
            let listener = move |record| {
                if let Record::Ability { call, outcome: CallOutcome::Ok, .. } = record {
                    tell(call);
                }
            };
            // SAFETY: no rank of such a job gives up or dies while others work.
            let transport = unsafe { Loopback::new(hub).with_single_copy_reads() };
            Box::new(Trace::new(transport, Box::new(listener)))
        })
    }

    /// Whose ranks have these engines for messages.
    pub(crate) fn with_engines(engines: Vec<Arc<dyn Engine>>, config: &Config) -> Job {
        Job::built(engines, config, |hub| Box::new(Loopback::new(hub)))
    }

    fn built(
        engines: Vec<Arc<dyn Engine>>,
        config: &Config,
        transport: impl Fn(&Hub) -> Box<dyn Btl>,
    ) -> Job {
        let size = u32::try_from(engines.len()).unwrap();
        let hub = Hub::new();
        let mut bmls: Vec<Bml> = Vec::new();
        let mut addresses = Vec::new();
        for rank in 0..size {
            let mut bml = Bml::new(Rank(rank), size);
            bml.add(transport(&hub));
            addresses.push(bml.addresses());
            bmls.push(bml);
        }
        let ranks = (0u32..).zip(bmls).zip(engines).map(|((me, mut bml), engine)| {
            for peer in (0..size).filter(|peer| *peer != me) {
                bml.connect(Rank(peer), &addresses[peer as usize]).unwrap();
            }
            Some(Pml::new(bml, vec![engine], config.clone()))
        });
        Job { ranks: ranks.collect() }
    }

    pub(crate) fn pml(&mut self, rank: u32) -> &mut Pml {
        self.ranks[rank as usize].as_mut().expect("that rank lives")
    }

    /// Ends a rank as a killed process would.
    pub(crate) fn kill(&mut self, rank: u32) {
        self.ranks[rank as usize] = None;
    }

    pub(crate) fn progress(&mut self) {
        for pml in self.ranks.iter_mut().flatten() {
            pml.progress();
        }
    }

    pub(crate) fn worlds(&mut self) -> Vec<Comm> {
        self.ranks.iter_mut().flatten().map(|pml| pml.world()).collect()
    }

    /// Another communicator of all ranks.
    pub(crate) fn dup(&mut self) -> Vec<Comm> {
        let worlds = self.worlds();
        self.make(|pml, rank| pml.start_dup(&worlds[rank as usize]))
    }

    /// An intercommunicator: between the ranks of which `is_one` holds, and the others. Its schedules' ranks are
    /// numbered as [`gapless_coll::execute::between`] says; the communicators come in the order of these.
    pub(crate) fn inter(&mut self, is_one: impl Fn(u32) -> bool) -> Vec<Comm> {
        let worlds = self.worlds();
        let sides = self.make(|pml, rank| {
            pml.start_split(&worlds[rank as usize], Some(is_one(rank).into()), 0)
        });
        let size = u32::try_from(worlds.len()).unwrap();
        let mut comms = self.make(|pml, rank| {
            let leader = (0..size).find(|other| is_one(*other) != is_one(rank)).unwrap();
            let at = rank as usize;
            pml.start_intercomm(&sides[at], 0, (&worlds[at], leader), 7)
        });
        comms.sort_by_key(|comm| between(comm).unwrap().rank);
        comms
    }

    fn make(
        &mut self,
        mut start: impl FnMut(&mut Pml, u32) -> Result<CommRequest, PmlError>,
    ) -> Vec<Comm> {
        let each = (0u32..).zip(self.ranks.iter_mut().flatten());
        let requests: Vec<_> = each.map(|(rank, pml)| start(pml, rank).unwrap()).collect();
        let mut made = BTreeMap::new();
        while made.len() < requests.len() {
            self.progress();
            for (rank, request) in (0u32..).zip(&requests) {
                if !made.contains_key(&rank)
                    && let Some(comm) = self.pml(rank).test_comm(*request).unwrap()
                {
                    made.insert(rank, comm.unwrap());
                }
            }
        }
        made.into_values().collect()
    }

    /// Advances one collective of a rank.
    pub(crate) fn advance(
        &mut self,
        rank: u32,
        executor: &mut Executor,
    ) -> Poll<Result<(), CollError>> {
        executor.advance(self.pml(rank), &HostEngine, &HostEngine)
    }

    /// Goes on until all these collectives have ended; those of dead ranks are not looked at.
    pub(crate) fn finish(
        &mut self,
        executors: &mut [(u32, Executor)],
    ) -> Vec<Option<Result<(), CollError>>> {
        let mut results = vec![None; executors.len()];
        for _ in 0..TURNS_MAX {
            let mut open = false;
            for ((rank, executor), result) in executors.iter_mut().zip(&mut results) {
                if self.ranks[*rank as usize].is_none() || result.is_some() {
                    continue;
                }
                match self.advance(*rank, executor) {
                    Poll::Ready(ended) => *result = Some(ended),
                    Poll::Pending => open = true,
                }
            }
            if !open {
                return results;
            }
            self.progress();
        }
        panic!("the collectives of ranks {:?} do not end", {
            let each = executors.iter().zip(&results);
            each.filter(|(_, result)| result.is_none())
                .map(|((rank, _), _)| rank)
                .collect::<Vec<_>>()
        });
    }

    pub(crate) fn sequencers(comms: &[Comm]) -> Vec<Sequencer> {
        comms.iter().map(Sequencer::new).collect()
    }
}
