//! Choices about a world, and its start: transports, addresses, connections.

mod devices;

use super::World;
use super::progress::ProgressThread;
#[cfg(not(any(feature = "cuda", feature = "opencl")))]
use crate::accelerators::Accelerators;
use crate::collective::Carrier;
use crate::communicator::Communicator;
use crate::error::Error;
use crate::shared::stuck::Stuck;
use crate::shared::{Shared, Wakeups};
use crate::view::detect_memory_of;
use crate::xtq::typed::Calls;
use gapless_bml::{AmTag, Bml, Judge, Nearness, Rank};
use gapless_boot::BootError;
use gapless_boot::descriptors;
use gapless_boot::directory::{Connection, SM};
use gapless_boot::meet::{Met, meet};
use gapless_boot::network::{Choices, HAS_VERBS, IB, TCP, Ways};
use gapless_boot::process_record::Network;
use gapless_boot::wireup::{self, Wireup, WireupError};
use gapless_btl::{Btl, Limits};
use gapless_btl_sm::{Sm, SmConfig};
use gapless_coll::runtime::AllEngines;
use gapless_coll::runtime::Component;
#[cfg(feature = "cuda")]
use gapless_dtype_cuda::Workers;
use gapless_engine::{Engine, HostEngine, ThreadedHostEngine};
#[cfg(any(feature = "cuda", feature = "opencl"))]
use gapless_gpu::{Accelerators, OnDemand};
use gapless_mem::Device;
use gapless_osc::Osc;
use gapless_pml::{Config, Pml, Tuning};
use gapless_tuning::coll::Table;
use gapless_xtq::Xtq;
use std::fmt;
use std::num::NonZeroUsize;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

/// The tag of messages about tasks of collectives.
const COLLECTIVE_TASKS: AmTag = AmTag(33);
/// The tag of messages about calls.
const CALLS: AmTag = AmTag(34);

/// OpenCL contexts of which what messages need is kept, if nothing else is said.
const OPENCL_CONTEXTS: usize = 8;

/// A launcher that states more than this is wrong: tables for so many processes would take all memory.
const PROCESSES_MAX: u32 = 1 << 20;

/// Choices about a world; everything has a default.
///
/// ```
/// use gapless::btl::loopback::{Hub, Loopback};
/// // A transport of your own stands here.
/// let transport = Box::new(Loopback::new(&Hub::new()));
/// let world = gapless::World::builder().transport(transport).init()?;
/// assert_eq!(world.size(), 1);
/// # Ok::<(), gapless::Error>(())
/// ```
#[derive(Default)]
pub struct Builder {
    transports: Vec<Box<dyn Btl>>,
    only: Option<Vec<String>>,
    network: Choices,
    engines: Vec<Arc<dyn Engine>>,
    devices: Vec<Arc<dyn Device>>,
    no_detection: bool,
    contexts: Option<usize>,
    #[cfg(feature = "cuda")]
    workers: Workers,
    progress_thread: bool,
    task_threads: Option<usize>,
    copy_threads: Option<usize>,
    put_room: Option<(usize, u64)>,
    config: Option<Config>,
    tuning: Option<Tuning>,
    table: Option<Table>,
    checked_collectives: bool,
    components: Vec<Arc<dyn Component>>,
    wireup: Option<Box<dyn Wireup>>,
    judge: Option<Judge>,
}

impl Builder {
    /// Adds a transport beside the built-in one. For each peer the best transport that reaches it is used, by the
    /// promised [limits](gapless_btl::Limits).
    #[must_use]
    pub fn transport(mut self, transport: Box<dyn Btl>) -> Builder {
        self.transports.push(transport);
        self
    }

    /// Uses no transports but those with these names (`"sm"`, `"tcp"` and, with the feature `ib`, `"ib"` are the built-in
    /// ones); a process reaches itself without any. All ranks must say the same.
    #[must_use]
    pub fn only<S: Into<String>>(mut self, names: impl IntoIterator<Item = S>) -> Builder {
        self.only = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// Whether a transport of this name is used if there is one, as [`only`](Builder::only) has it.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name))
    }

    /// What the transports promise that were added and are [used](Builder::uses), in the order of their adding; without
    /// the built-in one, which [`init`](Builder::init) makes.
    ///
    /// ```
    /// use gapless::btl::loopback::{Hub, Loopback};
    /// let builder = gapless::World::builder().transport(Box::new(Loopback::new(&Hub::new())));
    /// assert_eq!(builder.limits().map(|limits| limits.name).collect::<Vec<_>>(), ["loopback"]);
    /// assert_eq!(builder.only(["sm"]).limits().count(), 0);
    /// ```
    pub fn limits(&self) -> impl Iterator<Item = &Limits> {
        self.transports.iter().map(|btl| btl.limits()).filter(|limits| self.uses(limits.name))
    }

    /// Which interfaces of this host are used for TCP, if the job has several hosts: names (`"eth0"`, `"ib*"`),
    /// networks (`"10.1.0.0/16"`) and addresses, apart by commas; after `!` what is not used. By default all but
    /// loopback and those that lead to containers or virtual machines of this host (`docker*`, `virbr*`, `veth*` and
    /// others by their names), which are used if there is nothing else. Goes before the variable `GAPLESS_TCP_INTERFACES`.
    /// Several interfaces that are named are used together, and one of them may fail.
    #[must_use]
    pub fn tcp_interfaces(mut self, list: impl Into<String>) -> Builder {
        self.network.interfaces = Some(list.into());
        self
    }

    /// The ports at which this process may listen for TCP, from 1 up: one for each address and rail. By default the
    /// system chooses. Goes before the variable `GAPLESS_TCP_PORTS`.
    #[must_use]
    pub fn tcp_ports(mut self, ports: RangeInclusive<u16>) -> Builder {
        self.network.ports = Some(ports);
        self
    }

    /// Which adapters for InfiniBand and RoCE are used, if the job has several hosts and the program was built with the
    /// feature `ib`: devices (`"mlx5_0"`, `"mlx5_*"`) and ports (`"mlx5_0:1"`), apart by commas; after `!` what is not
    /// used. Of these, each port that has a link is a transport; by default the nearest and quickest one of each network.
    /// Of each pair of processes, one port at either end is used, or all that fit if both name several. `"!*"` uses none.
    /// Goes before the variable `GAPLESS_IB_DEVICES`.
    #[must_use]
    pub fn ib_devices(mut self, list: impl Into<String>) -> Builder {
        self.network.devices = Some(list.into());
        self
    }

    /// After how long a host that does not answer is given up, with all of its processes: 5 s to an hour. By default 12 s
    /// over TCP and 10 s over InfiniBand and RoCE. A host that is busy answers. Goes before the variable
    /// `GAPLESS_NOTICE_SECONDS`.
    #[must_use]
    pub fn notice(mut self, within: Duration) -> Builder {
        self.network.manner.notice = Some(within);
        self
    }

    /// Which address (GID) of an adapter's port is used, by its index in the port's table. A port that has none there is
    /// not used. By default that of RoCE v2 over IPv4, then IPv6. Goes before the variable `GAPLESS_IB_GID_INDEX`.
    #[must_use]
    pub fn ib_gid_index(mut self, index: u8) -> Builder {
        self.network.manner.gid_index = Some(index);
        self
    }

    /// Which partition of InfiniBand is used, by the index of its key (P_Key) in the port's table; by default 0. A port
    /// whose table is shorter is not used. Goes before the variable `GAPLESS_IB_PKEY_INDEX`.
    #[must_use]
    pub fn ib_pkey_index(mut self, index: u16) -> Builder {
        self.network.manner.pkey_index = Some(index);
        self
    }

    /// The traffic class of what adapters send; by default 0. Over RoCE v2 it is the type of service of IP, whose upper six
    /// bits (DSCP) switches go by: 104 is DSCP 26. Goes before the variable `GAPLESS_IB_TRAFFIC_CLASS`.
    #[must_use]
    pub fn ib_traffic_class(mut self, class: u8) -> Builder {
        self.network.manner.traffic_class = Some(class);
        self
    }

    /// The service level of what adapters send over InfiniBand, 0 to 15; by default 0. Goes before the variable
    /// `GAPLESS_IB_SERVICE_LEVEL`.
    #[must_use]
    pub fn ib_service_level(mut self, level: u8) -> Builder {
        self.network.manner.service_level = Some(level);
        self
    }

    /// Whether messages to other hosts are encrypted: TLS 1.3 over TCP, with a key for each process that is derived from
    /// the job's secret. All processes of a job must say the same; otherwise the start fails at all of them if there are
    /// several hosts ([`Incompatible`](BootError::Incompatible)). With encryption, verbs are not used. Shared memory and
    /// transports that were [given](Builder::transport) are not encrypted. By default nothing is. Takes precedence over
    /// the variable `GAPLESS_ENCRYPT`. Needs the feature `encryption`.
    #[must_use]
    pub fn encrypt(mut self, yes: bool) -> Builder {
        self.network.encrypt = Some(yes);
        self
    }

    /// Who says how near a [rail](Builder::tcp_interfaces), by its name (`"tcp"`, `"tcp1"` to `"tcp7"`, in the order of the
    /// interfaces), is to the memory of a device: of several rails to one peer, messages out of that memory prefer the
    /// nearer ones. By default that is what the system tells of the interface and the device: the bridges of PCI Express
    /// above both, and their NUMA nodes. `None` says that a rail is as good as the nearest.
    ///
    /// ```
    /// use gapless::Nearness;
    /// // The second rail is for the GPUs, whatever the system says.
    /// let near = |rail: &str| if rail == "tcp1" { Nearness::Switch } else { Nearness::Far };
    /// let builder = gapless::World::builder().nearness(move |rail, _| Some(near(rail)));
    /// # builder.init()?;
    /// # Ok::<(), gapless::Error>(())
    /// ```
    #[must_use]
    pub fn nearness(
        mut self,
        judge: impl Fn(&str, &dyn Device) -> Option<Nearness> + Send + Sync + 'static,
    ) -> Builder {
        self.judge = Some(Box::new(judge));
        self
    }

    /// Adds an engine, which is asked before the host's.
    #[must_use]
    pub fn engine(mut self, engine: Arc<dyn Engine>) -> Builder {
        self.engines.push(engine);
        self
    }

    /// Whether a thread makes progress while no other is in a call. Off by default: messages that several threads
    /// handle in turn take longer. The thread sleeps while nothing arrives (50 ms at a time at most) and while others
    /// wait and so make progress themselves. Leaving the world ends it.
    #[must_use]
    pub fn progress_thread(mut self, yes: bool) -> Builder {
        self.progress_thread = yes;
        self
    }

    /// How many threads run tasks that are [put here](World::xtq): functions, and kernels that are launched, each as long as
    /// its kernel runs. 2 by default, at least 1; they are made when the first task comes. Queues of a greater
    /// [width](crate::xtq::QueueOptions::width) run no more tasks at a time.
    #[must_use]
    pub fn task_threads(mut self, count: usize) -> Builder {
        self.task_threads = Some(count);
        self
    }

    /// How many threads help to pack and unpack pieces of 256 KiB and more in memory of the host: 0 for none, and 4 if
    /// more are asked for. Those who need them are messages between ordinary memory and devices, which pass through
    /// page-locked rings. Pieces that long of other messages, of collectives and of windows are shared with them, too.
    ///
    /// By default these are the processors that are left if each process of the host uses one itself, 4 at most: none if
    /// there are as many processes as processors. They start with the first such piece.
    #[must_use]
    pub fn copy_threads(mut self, count: usize) -> Builder {
        self.copy_threads = Some(count);
        self
    }

    /// How many [tasks](World::xtq) that were put at one target and have not ended this process keeps, and how many bytes of
    /// arguments and payloads that the target has not accepted: 65,536 and 256 MiB by default. What is more is refused
    /// ([`Full`](crate::xtq::XtqError::Full)), or [waits](crate::xtq::Tasks::put_when_room).
    #[must_use]
    pub fn put_room(mut self, puts: usize, bytes: u64) -> Builder {
        self.put_room = Some((puts, bytes));
        self
    }

    /// Sets how messages are carried, the cost model's numbers included: no [tuning file](crate::tuning) is read
    /// then. To change only something else, start with
    /// `Config { tuning: gapless::tuning::load()?, ..Config::default() }`.
    #[must_use]
    pub fn config(mut self, config: Config) -> Builder {
        self.config = Some(config);
        self
    }

    /// Sets the cost model's numbers, whatever [`config`](Builder::config) says: no
    /// [tuning file](crate::tuning) is read.
    #[must_use]
    pub fn tuning(mut self, tuning: Tuning) -> Builder {
        self.tuning = Some(tuning);
        self
    }

    /// Sets the table by which collectives choose their algorithms: no [file](crate::tuning::coll) is read. All ranks
    /// must give the same.
    #[must_use]
    pub fn coll_table(mut self, table: Table) -> Builder {
        self.table = Some(table);
        self
    }

    /// Whether ranks compare what they give to a collective before it begins. If operations, roots, lengths, types of
    /// elements or operators do not fit together, all ranks get an error that names the argument and a rank that differs,
    /// and nothing else is sent. Bytes (`u8`) fit elements of any type. Off by default, as it costs exchanges among all ranks before every collective.
    ///
    /// All ranks must say the same: where some compare and others do not, collectives fail or wait for ever.
    #[must_use]
    pub fn checked_collectives(mut self, yes: bool) -> Builder {
        self.checked_collectives = yes;
        self
    }

    /// Has a [component](gapless_coll::runtime::Component) make modules for the collectives of communicators: they are asked
    /// before those of Gapless. All ranks must give the same, in the same order.
    #[must_use]
    pub fn collective_component(mut self, component: Arc<dyn Component>) -> Builder {
        self.components.push(component);
        self
    }

    /// The configuration, with the numbers of its source.
    fn settled(&mut self) -> Result<Config, Error> {
        let (config, tuning) = (self.config.take(), self.tuning.take());
        #[cfg_attr(
            not(feature = "cuda"),
            expect(unused_mut, reason = "without workers it stays so")
        )]
        let mut config = match (config, tuning) {
            (Some(config), None) => config,
            (config, Some(tuning)) => Config { tuning, ..config.unwrap_or_default() },
            (None, None) => Config { tuning: gapless_tuning::load()?, ..Config::default() },
        };
        #[cfg(feature = "cuda")]
        if self.workers != Workers::Never && config.tuning.worker_bytes_max == 0 {
            config.tuning.worker_bytes_max = gapless_dtype_cuda::WORKER_COPY_MAX;
        }
        Ok(config)
    }

    /// Uses this launcher instead of the one that the environment names.
    #[must_use]
    pub fn wireup(mut self, wireup: Box<dyn Wireup>) -> Builder {
        self.wireup = Some(wireup);
        self
    }

    /// Joins the job; see [`World::init`].
    ///
    /// # Errors
    /// As [`World::init`]; a transport was chosen that does not exist.
    pub fn init(mut self) -> Result<World, Error> {
        // First of all: an invalid file should not cost the peers a start.
        let config = self.settled()?;
        let table = match self.table.take() {
            Some(table) => table,
            None => gapless_tuning::coll::load_table()?,
        };
        let settings = std::mem::take(&mut self.network).settle()?;
        let stuck = Stuck::from_environment()?;
        let wireup = match self.wireup.take() {
            Some(wireup) => wireup,
            None => wireup::detect()?,
        };
        let (rank, size) = (wireup.rank(), wireup.size());
        if size > PROCESSES_MAX {
            return Err(WireupError::TooManyProcesses { size, max: PROCESSES_MAX }.into());
        }
        let needed = descriptors::least(size);
        descriptors::raise(descriptors::most(size), needed)
            .map_err(|limit| BootError::TooFewDescriptors { size, needed, limit })?;
        let mut bml = Bml::new(Rank(rank), size);
        let judge = self.judge.take();
        bml.judge_nearness_by(judge.unwrap_or_else(|| gapless_boot::network::judge(&settings)));
        let windows = Osc::register(&mut bml)?;
        for transport in self.chosen(&*wireup)? {
            bml.add(transport);
        }
        // One of the user's own goes before.
        let given = bml.addresses().iter().any(|(name, _)| name == IB);
        let ways = Ways { tcp: self.uses(TCP), verbs: HAS_VERBS && self.uses(IB) && !given };
        let network = match (ways.tcp || ways.verbs, self.uses(SM)) {
            (false, _) => Network::No,
            (true, true) => Network::Able,
            (true, false) => Network::Wanted,
        };
        let job = wireup.job().to_owned();
        let connection = Connection::new(wireup);
        let digest = gapless_tuning::coll::digest(&table);
        let Met { sharing, places } =
            meet(&connection, &mut bml, &digest, (network, ways, &settings))?;
        let accelerators =
            Accelerators::new(!self.no_detection, self.contexts.unwrap_or(OPENCL_CONTEXTS));
        #[cfg(feature = "cuda")]
        let accelerators = accelerators.with_config(gapless_dtype_cuda::Config {
            workers: self.workers,
            ..gapless_dtype_cuda::Config::default()
        });
        let accelerators = Arc::new(accelerators);
        #[cfg(any(feature = "cuda", feature = "opencl"))]
        if !self.no_detection {
            self.engines.push(Arc::new(OnDemand::new(&accelerators)));
        }
        let copying = self.copying(sharing);
        let host_engine: Arc<dyn Engine> = match &copying {
            Some(engine) => Arc::clone(engine) as _,
            None => Arc::new(HostEngine),
        };
        self.engines.push(host_engine);
        let wakeups = Wakeups::new()?;
        let carried = Xtq::attach_at(&mut bml, COLLECTIVE_TASKS, task_config(&wakeups))?;
        let carrier = Arc::new(Carrier::new(carried));
        let tools = AllEngines::new(self.engines.clone(), Arc::clone(&carrier) as _);
        let tools = (Arc::new(tools), carrier);
        let (usual, plain) = (task_config(&wakeups), gapless_xtq::Config::default());
        let threads = self.task_threads.unwrap_or(usual.threads);
        let (puts_max, put_bytes_max) =
            self.put_room.unwrap_or((plain.puts_max, plain.put_bytes_max));
        let usual = gapless_xtq::Config { threads, puts_max, put_bytes_max, ..usual };
        let calls = Xtq::attach_at(&mut bml, CALLS, usual.clone())?;
        let calls = Arc::new(Calls::new(calls));
        let xtq = Xtq::attach(&mut bml, usual)?;
        let window_tasks = gapless_osc::Tasks::attach(&mut bml, &windows, task_config(&wakeups))?;
        let mut pml = Pml::new(bml, self.engines, config);
        if places.are_several_hosts() {
            pml.expect_remote_hosts();
        }
        for device in &self.devices {
            detect_memory_of(device);
            attach(&mut pml, device);
        }
        let ours = xtq.clone();
        let (world, myself) = (pml.world(), pml.self_comm());
        let (layers, places) = ((pml, windows, window_tasks), (sharing, places, stuck));
        let tasks = (xtq, Arc::clone(&calls), wakeups);
        let shared = Shared::new(layers, tasks, places, accelerators, tools);
        let shared = Arc::new(shared);
        shared.set_table(table);
        shared.check_collectives(self.checked_collectives);
        shared.set_components(self.components);
        let comm = Communicator::new(&shared, world);
        let myself = Communicator::new(&shared, myself);
        tracing::debug!(rank, size, job, "joined");
        let thread =
            if self.progress_thread { Some(ProgressThread::start(&shared)?) } else { None };
        let wireup = Some(connection);
        Ok(World { shared, comm, myself, wireup, thread, xtq: ours, calls, copying })
    }

    /// The engine of host memory with threads, if it is to have any, in one of so many processes that share this one's
    /// processors.
    fn copying(&self, processes: usize) -> Option<Arc<ThreadedHostEngine>> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let usual = ThreadedHostEngine::threads_for(processes, processors);
        let threads = NonZeroUsize::new(self.copy_threads.unwrap_or(usual))?;
        Some(Arc::new(ThreadedHostEngine::new(threads)))
    }

    /// The transports to use: those given, and the built-in one if there is any peer to reach.
    fn chosen(&mut self, wireup: &dyn Wireup) -> Result<Vec<Box<dyn Btl>>, Error> {
        let known: Vec<&str> = self
            .transports
            .iter()
            .map(|btl| btl.limits().name)
            .chain([SM, TCP])
            .chain(HAS_VERBS.then_some(IB))
            .collect();
        if let Some(names) = &self.only
            && let Some(name) = names.iter().find(|name| !known.contains(&name.as_str()))
        {
            let (name, known) = (name.clone(), known.join(", "));
            return Err(Error::NoSuchTransport { name, known });
        }
        let mut chosen = std::mem::take(&mut self.transports);
        chosen.retain(|btl| self.uses(btl.limits().name));
        if self.uses(SM) {
            let rank = wireup.rank();
            let usual = SmConfig::new(wireup.job(), format!("rank {rank}"));
            match Sm::new(SmConfig { number: Some(rank), ..usual }) {
                Ok(sm) => chosen.push(Box::new(sm)),
                // A process that is alone, or has other transports, needs none.
                Err(error) if wireup.size() == 1 || !chosen.is_empty() => {
                    tracing::warn!(%error, "no shared memory between processes");
                }
                Err(error) => return Err(BootError::Transport { name: SM, error }.into()),
            }
        }
        Ok(chosen)
    }
}

/// Makes a device known to the transports, as far as they and the device can.
pub(crate) fn attach(pml: &mut Pml, device: &Arc<dyn Device>) {
    if let Err(error) = pml.attach(device) {
        let name = &device.properties().name;
        tracing::info!(name, %error, "messages of a device are staged");
    }
}

/// The settings of an end for tasks. A task that ends wakes whoever waits. Collectives and windows
/// bound by themselves what they put.
fn task_config(wakeups: &Wakeups) -> gapless_xtq::Config {
    let wakeups = wakeups.clone();
    let wakeup = Arc::new(move || {
        wakeups.alarm.signal();
        wakeups.nudge.signal();
    });
    let (puts_max, put_bytes_max) = (usize::MAX, u64::MAX);
    gapless_xtq::Config { wakeup, puts_max, put_bytes_max, ..gapless_xtq::Config::default() }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<_> = self.transports.iter().map(|btl| btl.limits().name).collect();
        f.debug_struct("Builder")
            .field("transports", &names)
            .field("only", &self.only)
            .field("config", &self.config)
            .field("open_devices", &!self.no_detection)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A launcher whose job has as many processes as it likes.
    struct Claims(u32);

    impl Wireup for Claims {
        fn rank(&self) -> u32 {
            0
        }

        fn size(&self) -> u32 {
            self.0
        }

        fn local_size(&self) -> Option<u32> {
            None
        }

        fn job(&self) -> &str {
            "claims"
        }

        fn put(&mut self, _: &str, _: &str) -> Result<(), WireupError> {
            Ok(())
        }

        fn fence(&mut self) -> Result<(), WireupError> {
            Ok(())
        }

        fn get(&mut self, from: u32, key: &str) -> Result<String, WireupError> {
            Err(WireupError::NoSuchKey { from, key: key.to_owned() })
        }

        fn finalize(&mut self) -> Result<(), WireupError> {
            Ok(())
        }
    }

    #[test]
    fn a_launcher_that_says_too_many_processes_is_refused() {
        for size in [u32::MAX, PROCESSES_MAX + 1] {
            let refused = Builder::default().wireup(Box::new(Claims(size))).init();
            let Err(Error::Boot(BootError::Wireup(error))) = refused else { panic!("{refused:?}") };
            assert_eq!(error, WireupError::TooManyProcesses { size, max: PROCESSES_MAX });
            assert!(error.to_string().contains(&size.to_string()), "{error}");
        }
    }
}
