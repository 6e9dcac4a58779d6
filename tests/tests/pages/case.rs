//! Random messages whose ends are pages or an ordinary layout, and what must come of them.

use crate::pages::FAKE;
use gapless::{
    Datatype, Device, DeviceBuf, Error, Layout, Pages, Primitive, Protocol, Region, View, ViewMut,
    World,
};
use gapless_btl_testkit::Random;
use gapless_mem::fake::FakeDevice;
use gapless_tests::byte_at;

/// One end of a message: where each of its bytes lies, and how that is said.
struct End {
    form: Form,
    origin: usize,
    /// Of each packed byte, in the buffer.
    places: Vec<usize>,
    buffer_bytes: usize,
}

enum Form {
    Pages(Pages),
    /// An ordinary layout.
    Rows(Layout),
}

/// A page of rows: how many, how long, and how far apart they begin; where the first does.
struct Rows {
    rows: usize,
    len: usize,
    step: usize,
    start: usize,
}

impl Rows {
    fn random(random: &mut Random, bytes: usize) -> Rows {
        let rows = [1, 1, 2, 4][random.below(4)];
        let rows = if bytes.is_multiple_of(rows) { rows } else { 1 };
        let len = bytes / rows;
        Rows { rows, len, step: len + random.below(2) * 5, start: random.below(2) * 3 }
    }

    fn places(&self) -> impl Iterator<Item = usize> {
        let Rows { rows, len, step, start } = *self;
        (0..rows).flat_map(move |row| (0..len).map(move |at| start + row * step + at))
    }

    /// Bytes from displacement 0 to the end.
    fn end(&self) -> usize {
        self.start + (self.rows - 1) * self.step + self.len
    }

    fn layout(&self) -> Layout {
        let [step, start] = [self.step, self.start].map(|it| i64::try_from(it).unwrap());
        let row = Datatype::contiguous(self.len as u64, &Primitive::Byte.into()).unwrap();
        let all = Datatype::hvector(self.rows as u64, 1, step, &row).unwrap();
        Datatype::hindexed_block(1, &[start], &all).unwrap().commit().unwrap()
    }
}

impl End {
    /// So many pages of so many bytes each. A sender's may overlap and come again, a receiver's may not.
    fn pages(random: &mut Random, count: usize, bytes: usize, sends: bool) -> End {
        let rows = Rows::random(random, bytes);
        let stride = match random.below(3) {
            0 if sends => rows.end() / 2 + 1,
            1 => rows.end() + random.below(40),
            _ => rows.end(),
        };
        let pool = count * 2 + 1;
        // Some order of all pages of the pool, of which the first ones are taken.
        let mut indices: Vec<usize> = (0..pool).collect();
        for at in 0..count {
            indices.swap(at, at + random.below(pool - at));
        }
        indices.truncate(count);
        if sends && count > 1 {
            indices[count - 1] = indices[0];
        }
        let origin = random.below(20);
        let places = indices.iter().flat_map(|index| {
            let page = origin + index * stride;
            rows.places().map(move |at| page + at)
        });
        let stride_bytes = stride as u64;
        let pages = match random.below(2) {
            0 => {
                let list: Vec<u32> = indices.iter().map(|it| u32::try_from(*it).unwrap()).collect();
                Pages::new(&rows.layout(), stride_bytes, list)
            }
            _ => {
                let list: Vec<u64> = indices.iter().map(|it| *it as u64).collect();
                Pages::new(&rows.layout(), stride_bytes, list)
            }
        };
        let form = Form::Pages(pages.unwrap());
        let buffer_bytes = origin + pool * stride + rows.end();
        End { form, origin, places: places.collect(), buffer_bytes }
    }

    /// As many bytes by an ordinary layout.
    fn rows(random: &mut Random, bytes: usize) -> End {
        let rows = Rows::random(random, bytes);
        let origin = random.below(20);
        let places = rows.places().map(|at| origin + at).collect();
        let form = Form::Rows(rows.layout());
        End { form, origin, places, buffer_bytes: origin + rows.end() + 7 }
    }

    fn view<'b>(&self, memory: &'b [u8]) -> Result<View<'b>, Error> {
        let origin = self.origin as u64;
        match &self.form {
            Form::Pages(pages) => View::pages(memory, origin, pages),
            Form::Rows(layout) => View::typed(memory, origin, layout, 1),
        }
    }

    fn view_mut<'b>(&self, memory: &'b mut [u8]) -> Result<ViewMut<'b>, Error> {
        let origin = self.origin as u64;
        match &self.form {
            Form::Pages(pages) => ViewMut::pages(memory, origin, pages),
            Form::Rows(layout) => ViewMut::typed(memory, origin, layout, 1),
        }
    }

    fn on_device<'b>(&self, memory: &'b DeviceBuf) -> Result<View<'b>, Error> {
        let origin = self.origin as u64;
        match &self.form {
            Form::Pages(pages) => memory.pages(origin, pages),
            Form::Rows(layout) => memory.view(origin, layout, 1),
        }
    }

    fn on_device_mut<'b>(&self, memory: &'b mut DeviceBuf) -> Result<ViewMut<'b>, Error> {
        let origin = self.origin as u64;
        match &self.form {
            Form::Pages(pages) => memory.pages_mut(origin, pages),
            Form::Rows(layout) => memory.view_mut(origin, layout, 1),
        }
    }
}

/// A message that both ranks know.
pub(crate) struct Case {
    send: End,
    recv: End,
    seed: u64,
}

impl Case {
    /// Pages at both ends, longer than what goes eagerly.
    fn long(seed: u64) -> Case {
        let random = &mut Random::new(seed);
        let send = End::pages(random, 100, 1500, true);
        Case { send, recv: End::pages(random, 50, 3000, false), seed }
    }

    fn new(seed: u64) -> Case {
        let random = &mut Random::new(seed);
        // None, below and above what goes eagerly, and long ones.
        let around = [0, 1, 40, 500, 3000, 9000, 40_000, 150_000, 400_000];
        let about = around[random.below(around.len())];
        let mut some = |least: usize, sends| {
            let bytes = [1, 8, 52, 512, 1000, 4096][random.below(6)].max(about / 300);
            let count = least.div_ceil(bytes);
            match random.below(3) {
                0 => End::rows(random, least),
                _ => End::pages(random, count, bytes, sends),
            }
        };
        let send = some(about, true);
        // The receive has room for as many, or for some more.
        let recv = some(send.places.len(), false);
        Case { send, recv, seed }
    }

    fn sent(&self, rank: u32) -> Vec<u8> {
        let seed = self.seed * 4 + u64::from(rank);
        (0..self.send.buffer_bytes).map(|at| byte_at(seed, at as u64)).collect()
    }

    fn fresh(&self) -> Vec<u8> {
        (0..self.recv.buffer_bytes).map(|at| byte_at(self.seed * 4 + 3, at as u64)).collect()
    }

    /// What the receiver has in the end of a message from `rank`.
    fn expected(&self, rank: u32) -> Vec<u8> {
        let (sent, mut into) = (self.sent(rank), self.fresh());
        for (from, to) in self.send.places.iter().zip(&self.recv.places) {
            into[*to] = sent[*from];
        }
        into
    }

    fn bytes(&self) -> u64 {
        self.send.places.len() as u64
    }

    /// Both ways, from memory of the heap and from memory that can be mapped; by which protocols.
    pub(crate) fn exchange(&self, world: &World, what: &str) -> Vec<Protocol> {
        let comm = world.comm();
        let (me, peer) = (comm.rank(), comm.size() - 1 - comm.rank());
        let right = self.expected(peer);
        let out = self.sent(me);
        let mut shared = world.alloc(out.len()).unwrap();
        shared.copy_from_slice(&out);
        let mut mapped = world.alloc(self.recv.buffer_bytes).unwrap();
        let mut protocols = Vec::new();
        for memory in [&out[..], &shared[..]] {
            let mut heap = self.fresh();
            mapped.copy_from_slice(&heap);
            for into in [&mut heap[..], &mut mapped[..]] {
                comm.scope(|s| {
                    let received = s.irecv(self.recv.view_mut(into)?, peer, 7)?;
                    let _ = s.isend(self.send.view(memory)?, peer, 7)?;
                    let status = s.wait(received)?;
                    assert_eq!(status.bytes, self.bytes());
                    protocols.push(status.protocol);
                    Ok(())
                })
                .unwrap_or_else(|error| panic!("{what}, seed {}: {error}", self.seed));
                compare(into, &right, &format!("{what}, seed {}", self.seed));
            }
        }
        protocols
    }

    /// Both ways, in memory of a device at both ends or at one.
    pub(crate) fn between_devices(&self, world: &World, device: &FakeDevice, what: &str) {
        let comm = world.comm();
        let (me, peer) = (comm.rank(), comm.size() - 1 - comm.rank());
        let right = self.expected(peer);
        let out = self.sent(me);
        let upload = |bytes: &[u8]| {
            let memory = world.alloc_device(FAKE, bytes.len() as u64).unwrap();
            copy(device, memory.region(), Region::of(bytes));
            memory
        };
        let there = upload(&out);
        for spaces in 1..4 {
            let mut into = self.fresh();
            let mut into_there = upload(&into);
            let to_device = spaces & 1 != 0;
            comm.scope(|s| {
                let to = match to_device {
                    true => self.recv.on_device_mut(&mut into_there)?,
                    false => self.recv.view_mut(&mut into)?,
                };
                let _ = s.irecv(to, peer, 7)?;
                let from = match spaces & 2 != 0 {
                    true => self.send.on_device(&there)?,
                    false => self.send.view(&out)?,
                };
                let _ = s.isend(from, peer, 7)?;
                Ok(())
            })
            .unwrap_or_else(|error| panic!("{what}, seed {}, {spaces}: {error}", self.seed));
            if to_device {
                copy(device, Region::of_mut(&mut into), into_there.region());
            }
            compare(&into, &right, &format!("{what}, seed {}, {spaces}", self.seed));
        }
    }
}

pub(crate) fn compare(found: &[u8], right: &[u8], what: &str) {
    let wrong = found.iter().zip(right).position(|(found, right)| found != right);
    assert_eq!(wrong, None, "{what}: the first wrong byte");
}

pub(crate) fn copy(device: &FakeDevice, to: Region, from: Region) {
    // SAFETY: both live over the wait, and nothing else touches them.
    unsafe { device.copy(to, from, &[]) }.unwrap().wait().unwrap();
}

/// A run's cases: the first is a long one, of seed `GAPLESS_SEED` if that is set.
pub(crate) fn cases(count: u64) -> Vec<Case> {
    let named = std::env::var("GAPLESS_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed: u64 = named.unwrap_or_else(|| u64::from(std::process::id()) * 1000);
    println!("GAPLESS_SEED={seed}");
    [Case::long(seed)].into_iter().chain((1..count).map(|at| Case::new(seed + at))).collect()
}
