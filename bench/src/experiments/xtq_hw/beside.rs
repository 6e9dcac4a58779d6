//! The target's own work beside a worker: what waits for the whole device, and a matrix product.

use super::*;
use crate::cublas::Cublas;
use gapless_kernels::worker::MULTIPLY;
use gapless_mem_cuda::{Function, Stream};

/// Seconds of what is timed, by its name.
type Times = Vec<(String, Vec<f64>)>;

/// What waits until nothing runs in the context that is current: `cudaDeviceSynchronize` is this call, behind CUDA's
/// runtime.
fn synchronize() -> Result<unsafe extern "C" fn() -> i32, Failure> {
    let library = crate::nccl::library("libcuda.so.1").map_err(Failure::Job)?;
    // SAFETY: the library is open, and the name ends in NUL.
    let found = unsafe { libc::dlsym(library, c"cuCtxSynchronize".as_ptr()) };
    if found.is_null() {
        return Err(job("the driver has no cuCtxSynchronize"));
    }
    // SAFETY: it is that function, which takes nothing and answers a number (`cuda.h`).
    Ok(unsafe { std::mem::transmute::<*mut std::ffi::c_void, unsafe extern "C" fn() -> i32>(found) })
}

/// How long what waits for the whole device waits, beside a worker that leaves after 100 µs; and how long it takes to load a
/// module without one.
pub(super) fn waits(
    device: &Arc<CudaDevice>,
    target: &mut WorkerTarget,
    quick: bool,
) -> Result<Times, Failure> {
    target.set_life(Life {
        idle: Some(Duration::from_micros(100)),
        longest: Duration::from_secs(10),
    });
    let mut beside = |act: &mut dyn FnMut() -> Result<(), Failure>| -> Result<f64, Failure> {
        target.start().map_err(job)?;
        let start = Instant::now();
        while !target.is_running() && start.elapsed() < PATIENCE {}
        if !target.is_running() {
            return Err(job("the worker has not begun"));
        }
        let start = Instant::now();
        act()?;
        Ok(start.elapsed().as_secs_f64())
    };
    device.bind_thread()?;
    let synchronize = synchronize()?;
    let (mut freed, mut loaded, mut synchronized) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..if quick { 3 } else { 50 } {
        let region = device.allocate(1 << 20)?;
        // SAFETY: nobody uses it.
        freed.push(beside(&mut || Ok(unsafe { device.free(region) }?))?);
        loaded.push(beside(&mut || load(device))?);
        synchronized.push(beside(&mut || {
            // SAFETY: it takes nothing, and the thread has a context.
            match unsafe { synchronize() } {
                0 => Ok(()),
                code => Err(job(format!("cuCtxSynchronize answered {code}"))),
            }
        })?);
    }
    target.leave().map_err(job)?;
    let mut alone = Vec::new();
    for _ in 0..loaded.len() {
        let begun = Instant::now();
        load(device)?;
        alone.push(begun.elapsed().as_secs_f64());
    }
    let times = [freed, loaded, alone, synchronized];
    Ok(["free", "load", "load alone", "synchronize"].map(str::to_owned).into_iter().zip(times).collect())
}

/// Loads a module and its first function.
fn load(device: &Arc<CudaDevice>) -> Result<(), Failure> {
    // SAFETY: CUDA's tools made the image, and it is compiled into this program.
    unsafe { Module::load(device, IMAGE) }?.function(REWRITE)?.properties()?;
    Ok(())
}

/// Rows of the matrices.
fn side(quick: bool) -> u32 {
    if quick { 1024 } else { 8192 }
}

pub(super) fn matrix_bytes(quick: bool) -> u64 {
    4 * u64::from(side(quick)).pow(2)
}

/// Matrices on the device: two factors and a product.
struct Matrices {
    at: [Region; 3],
    side: u32,
}

impl Matrices {
    /// Of small whole numbers, so that sums are exact in any order.
    fn new(device: &CudaDevice, side: u32) -> Result<Matrices, Failure> {
        let bytes = 4 * usize::try_from(u64::from(side).pow(2)).map_err(job)?;
        let at = [zeroed(device, bytes)?, zeroed(device, bytes)?, zeroed(device, bytes)?];
        let made = Matrices { at, side };
        for (which, factor) in made.at[..2].iter().enumerate() {
            let numbers = (0..bytes / 4).map(|at| Matrices::number(which, at, side));
            upload(device, *factor, &numbers.flat_map(f32::to_le_bytes).collect::<Vec<u8>>())?;
        }
        Ok(made)
    }

    fn number(which: usize, at: usize, side: u32) -> f32 {
        let side = side as usize;
        ((at / side * 5 + at % side * 3 + which) % 7) as f32 - 3.0
    }

    fn addresses(&self) -> [u64; 3] {
        self.at.map(|region| region.start())
    }

    /// Whether the product is right, in a few places. cuBLAS takes columns for rows: its product is that of the factors in
    /// the other order.
    fn is_right(&self, device: &CudaDevice, turned: bool) -> Result<bool, Failure> {
        let side = self.side as usize;
        let (first, second) = if turned { (1, 0) } else { (0, 1) };
        for at in [0, 1, side - 1, side * (side / 2) + 77, side * side - 1] {
            let place = self.at[2].sub(4 * (at & !1) as u64, 8).map_err(job)?;
            let pair = download(device, place)?[0];
            let found = f32::from_bits(
                u32::try_from(pair >> (32 * (at % 2)) & u64::from(u32::MAX)).unwrap_or(0),
            );
            let (row, column) = (at / side, at % side);
            let expected: f32 = (0..side)
                .map(|k| {
                    Matrices::number(first, row * side + k, self.side)
                        * Matrices::number(second, k * side + column, self.side)
                })
                .sum();
            if found != expected {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// A product that is queued.
enum Product {
    Ours(Function),
    Cublas(Cublas),
}

impl Product {
    fn queue(&self, stream: &Stream, matrices: &Matrices) -> Result<(), Failure> {
        let [a, b, c] = matrices.addresses();
        match self {
            Product::Ours(function) => {
                let words = [a, b, c, matrices.side.into()];
                let blocks = (matrices.side / 64).pow(2);
                // SAFETY: four parameters of 8 bytes; memory as `worker::MULTIPLY` says, which is never freed.
                let queued = unsafe {
                    function.launch(
                        stream,
                        Grid::line(blocks, 256),
                        &words.each_ref().map(Argument::of),
                    )
                };
                Ok(queued?)
            }
            // SAFETY: matrices of that side, which are never freed.
            Product::Cublas(cublas) => unsafe { cublas.multiply(matrices.side, [a, b, c]) },
        }
    }

    fn time(&self, stream: &Stream, matrices: &Matrices) -> Result<f64, Failure> {
        let start = Instant::now();
        self.queue(stream, matrices)?;
        let end = stream.record()?;
        while !end.poll().map_err(job)? {
            std::hint::spin_loop();
        }
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Seconds of a matrix product, alone and beside a worker that stays, in turns; and what was compared.
pub(super) fn products(
    device: &Arc<CudaDevice>,
    target: &mut WorkerTarget,
    cublas: &str,
    quick: bool,
) -> Result<(Times, String), Failure> {
    device.bind_thread()?;
    let matrices = Matrices::new(device, side(quick))?;
    let stream = device.stream()?;
    // SAFETY: CUDA's tools made the image, and it is compiled into this program.
    let ours = unsafe { Module::load(device, IMAGE) }?.function(MULTIPLY)?;
    let mut products = vec![("ours", Product::Ours(ours))];
    let mut said = String::from("matrix products were compared in a few places");
    // SAFETY: the stream is of the context that was made current, and outlives it.
    match unsafe { Cublas::new(cublas, stream.handle()) } {
        Ok(cublas) => products.push(("cublas", Product::Cublas(cublas))),
        Err(error) => said = format!("{said}; no cuBLAS: {error}"),
    }
    let mut times = Vec::new();
    for (name, product) in &products {
        // The first loads what it needs.
        product.time(&stream, &matrices)?;
        if !matrices.is_right(device, *name == "cublas")? {
            return Err(job(format!("the product of {name} is wrong")));
        }
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for _ in 0..if quick { 2 } else { 10 } {
            target.leave().map_err(job)?;
            product.time(&stream, &matrices)?;
            for _ in 0..3 {
                without.push(product.time(&stream, &matrices)?);
            }
            target.set_life(Life { idle: None, longest: Duration::from_secs(30) });
            target.start().map_err(job)?;
            let start = Instant::now();
            while !target.is_running() && start.elapsed() < PATIENCE {}
            product.time(&stream, &matrices)?;
            for _ in 0..3 {
                with.push(product.time(&stream, &matrices)?);
            }
            if !target.is_running() {
                return Err(job("the worker left meanwhile"));
            }
        }
        target.leave().map_err(job)?;
        times.extend([(format!("{name} without"), without), (format!("{name} with"), with)]);
    }
    Ok((times, said))
}
