//! The initiator of `xtq-hw`: a processor of another process, and its GPU.

use super::*;

/// The other process.
struct Initiator {
    lane: Lane,
    flags: Words,
    packet: Packet,
    arguments: Vec<u8>,
    payload: Vec<u8>,
    tasks: u64,
}

impl Initiator {
    fn say(said: &Said) -> Result<(), Failure> {
        let mut out = std::io::stdout().lock();
        let line = serde_json::to_string(said)?;
        writeln!(out, "{line}").and_then(|()| out.flush()).map_err(Failure::io("write", "the target's pipe"))
    }

    fn heard() -> Result<String, Failure> {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).map_err(Failure::io("read", "the target's pipe"))?;
        if line.is_empty() { Err(job("the target has ended")) } else { Ok(line.trim().to_owned()) }
    }

    fn ask(said: &Said) -> Result<(), Failure> {
        Initiator::say(said)?;
        Initiator::heard().map(|_| ())
    }

    fn put(&mut self) -> Result<(), Failure> {
        self.lane.put(&self.packet, [&self.arguments, &self.payload]).map_err(job)?;
        Ok(())
    }

    fn end(&mut self) -> Result<(), Failure> {
        let mut looks = 0u64;
        let start = Instant::now();
        loop {
            if let Some((_, outcome)) = self.lane.next() {
                self.tasks += 1;
                return if outcome == PutOutcome::Ended { Ok(()) } else { Err(job(format!("{outcome:?}"))) };
            }
            looks += 1;
            if looks.is_multiple_of(1024) {
                self.lane.is_served();
                if start.elapsed() > PATIENCE {
                    return Err(job("no answer for 10 s: no worker, or the target does not look"));
                }
            }
        }
    }

    fn one(&mut self) -> Result<f64, Failure> {
        let start = Instant::now();
        self.put()?;
        self.lane.announce();
        self.end()?;
        Ok(start.elapsed().as_secs_f64())
    }

    fn ones(&mut self, count: usize) -> Result<Vec<f64>, Failure> {
        (0..count).map(|_| self.one()).collect()
    }

    /// Seconds a task, with as many on their way as there is room for, announced `batch` at a time.
    fn many(&mut self, batch: u64, count: u64) -> Result<f64, Failure> {
        let start = Instant::now();
        let mut put = 0;
        while put < count {
            if self.lane.pending() + batch > SLOTS as u64 {
                self.end()?;
                continue;
            }
            for _ in 0..batch {
                self.put()?;
            }
            self.lane.announce();
            put += batch;
            while let Some((_, outcome)) = self.lane.next() {
                self.tasks += 1;
                if outcome != PutOutcome::Ended {
                    return Err(job(format!("{outcome:?}")));
                }
            }
        }
        while self.lane.pending() > 0 {
            self.end()?;
        }
        Ok(start.elapsed().as_secs_f64() / put as f64)
    }

    /// Seconds of a put and its announcement, of 128 into an empty ring.
    fn cost(&mut self) -> Result<f64, Failure> {
        let start = Instant::now();
        for _ in 0..128 {
            self.put()?;
            self.lane.announce();
        }
        let took = start.elapsed().as_secs_f64() / 128.0;
        while self.lane.pending() > 0 {
            self.end()?;
        }
        Ok(took)
    }
}

/// Nanoseconds that all threads of a process have run so far.
pub(super) fn ran_ns(process: Pid) -> Option<u64> {
    let threads = std::fs::read_dir(format!("/proc/{}/task", process.as_raw_nonzero())).ok()?;
    let one = |thread: std::io::Result<std::fs::DirEntry>| -> Option<u64> {
        let text = std::fs::read_to_string(thread.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    Some(threads.filter_map(one).sum())
}

fn is_stopped(process: Pid) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero()));
    stat.is_ok_and(|text| text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')))
}

pub(super) fn initiate(fd: i32, quick: bool) -> Result<(), Failure> {
    let target = getppid().ok_or_else(|| job("no target"))?;
    let path = format!("/proc/{}/fd/{fd}", target.as_raw_nonzero());
    let file = std::fs::OpenOptions::new().read(true).write(true).open(&path).map_err(Failure::io("open", &path))?;
    let memory = map(&file, shared_bytes())?;
    let ring = memory.sub(0, SHAPE.bytes()).map_err(job)?;
    // SAFETY: nobody else of this process touches this part.
    let lane = unsafe { Lane::new(ring, SHAPE) }?;
    let mut me = Initiator {
        lane,
        flags: tail(&memory)?,
        packet: packet()?,
        arguments: arguments(),
        payload: payload(),
        tasks: 0,
    };
    let gpu = match CudaDriver::load()?.devices() {
        0 | 1 => None,
        _ => Some(Gpu::new()?),
    };
    let key = gpu.as_ref().map(|gpu| gpu.key()).transpose()?;
    Initiator::say(&Said::Hello(key))?;
    let ring = Initiator::heard()?;
    let n = |count: usize| if quick { count / 100 + 1 } else { count };
    let times = |what: &str, seconds| Initiator::say(&Said::Times(what.to_owned(), seconds));
    Initiator::ask(&Said::Stay)?;
    me.ones(n(2000))?;
    times("one", me.ones(n(50_000))?)?;
    // No instruction of the target's processor.
    kill_process(target, Signal::STOP).map_err(|error| job(format!("stopping the target: {error}")))?;
    let start = Instant::now();
    while !is_stopped(target) && start.elapsed() < PATIENCE {
        std::thread::yield_now();
    }
    let stopped = if is_stopped(target) { me.ones(n(20_000)) } else { Err(job("the target does not stop")) };
    let was_stopped = is_stopped(target);
    kill_process(target, Signal::CONT).map_err(|error| job(format!("waking the target: {error}")))?;
    let stopped = stopped?;
    if !was_stopped {
        return Err(job("the target ran meanwhile"));
    }
    times("stopped", stopped)?;
    let rounds = |me: &mut Initiator, batch| -> Result<Vec<f64>, Failure> {
        (0..n(20)).map(|_| me.many(batch, if quick { 1600 } else { 100_000 })).collect()
    };
    times("batches", rounds(&mut me, 16)?)?;
    times("single", rounds(&mut me, 1)?)?;
    times("put", (0..n(2000)).map(|_| me.cost()).collect::<Result<_, _>>()?)?;
    let before = ran_ns(target);
    let count = if quick { 16_000 } else { 1_000_000 };
    me.many(16, count)?;
    if let (Some(before), Some(after)) = (before, ran_ns(target)) {
        let milliseconds = after.saturating_sub(before) as f64 * 1e-6;
        Initiator::say(&Said::Number("target ms a million".to_owned(), milliseconds * 1e6 / count as f64))?;
    }
    let by_gpu = match (&gpu, ring.as_str()) {
        (Some(gpu), key) if key != "-" => gpu.measure(key, &me, n(20_000), n(200_000))?,
        _ => Vec::new(),
    };
    let by_gpu_tasks = by_gpu.iter().map(|(_, _, tasks)| tasks).sum::<u64>();
    for (what, seconds, _) in by_gpu {
        times(what, seconds)?;
    }
    Initiator::ask(&Said::Idle)?;
    let mut idle = Vec::new();
    for _ in 0..n(500) {
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        idle.push(me.one()?);
    }
    me.flags.all()[OVER].store(1, Ordering::Release);
    times("idle", idle)?;
    Initiator::ask(&Said::Host)?;
    let mut host = Vec::new();
    let first = me.flags.all()[ASKED].load(Ordering::Acquire) + 1;
    let (busy, idle) = (n(5000) as u64, n(500) as u64);
    for number in first..first + busy + idle {
        let start = Instant::now();
        // As before the puts that find the worker gone.
        while number >= first + busy && start.elapsed() < Duration::from_millis(2) {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        me.flags.all()[ASKED].store(number, Ordering::Release);
        while me.flags.all()[ANSWERED].load(Ordering::Acquire) != number {
            if start.elapsed() > PATIENCE {
                return Err(job("the target's processor does not answer"));
            }
        }
        host.push(start.elapsed().as_secs_f64());
    }
    me.flags.all()[OVER].store(1, Ordering::Release);
    times("host idle", host.split_off(n(5000)))?;
    times("host", host.split_off(host.len() / 10))?;
    Initiator::say(&Said::Bye(me.tasks + by_gpu_tasks))
}

/// A name, seconds of tasks, and how many tasks there were.
type Series = (&'static str, Vec<f64>, u64);

/// The initiator's own GPU.
struct Gpu {
    device: Arc<CudaDevice>,
    status: Region,
}

impl Gpu {
    fn new() -> Result<Gpu, Failure> {
        let device = Arc::new(CudaDriver::load()?.device(1)?);
        let status = zeroed(&device, 8 * SLOTS)?;
        Ok(Gpu { device, status })
    }

    fn key(&self) -> Result<String, Failure> {
        Ok(hex(&self.device.export(self.status)?.bytes))
    }

    /// Seconds of each task, one at a time; and of one, with 128 on their way; and how many there were.
    fn measure(
        &self,
        key: &str,
        me: &Initiator,
        ones: usize,
        many: usize,
    ) -> Result<Vec<Series>, Failure> {
        let device = &self.device;
        let ring = device.import(unhex(key)?)?;
        let at = RingPlaces::at(device.device_address(ring)?, SHAPE);
        let list = [at.head, at.slots, self.status.start(), at.arena.0, at.arena.1.into(), 0, 0, 0];
        let list_at = zeroed(device, 64)?;
        upload(device, list_at, list.as_bytes())?;
        let body = [me.packet.as_bytes(), &me.arguments, &me.payload].concat();
        let packet_at = zeroed(device, 256)?;
        upload(device, packet_at.sub(0, body.len() as u64).map_err(job)?, &body)?;
        let out = zeroed(device, 8 * (3 + ones))?;
        // SAFETY: CUDA's tools made the image, and it is compiled into this program.
        let function = unsafe { Module::load(device, IMAGE) }?.function(INITIATE)?;
        let stream = device.stream()?;
        let mut found = Vec::new();
        for (what, count, window) in [("warm", 200, 1), ("gpu", ones, 1), ("gpu-many", many, 128)] {
            let body_bytes = body.len() as u64 - 64;
            let patience = 1_000_000_000u64;
            let parameters =
                [list_at.start(), packet_at.start(), body_bytes, count as u64, window, patience, out.start()];
            // SAFETY: seven parameters of 8 bytes; memory as `worker::INITIATE` says, which is never freed.
            unsafe { function.launch(&stream, Grid::line(1, 32), &parameters.each_ref().map(Argument::of)) }?;
            stream.record()?.wait()?;
            let words = download(device, out)?;
            if words[0] != 0 || words[1] != count as u64 {
                return Err(job(format!("tasks of a GPU: {} of {count}, status {:#x}", words[1], words[0])));
            }
            let each = match window {
                1 => words[3..3 + count].iter().map(|&ns| ns.max(1) as f64 * 1e-9).collect(),
                _ => vec![words[2] as f64 * 1e-9 / count as f64],
            };
            found.push((what, each, count as u64));
        }
        Ok(found)
    }
}
