//! Copies of all processes at once, each within its own memory: which of them wait until the GPU is this process's turn?

use gapless::{DeviceBuf, World};
use gapless_report::{Bytes, Row};

use super::memory::{GAP, Pinned, copy_within, on_gpu};
use super::timing::together;
use super::{Gpu, Options, Save};
use crate::error::Failure;
use crate::experiment::Common;

const SIZES: [u64; 11] = [
    4,
    256,
    1 << 10,
    4 << 10,
    16 << 10,
    32 << 10,
    64 << 10,
    64 << 10 | 256,
    128 << 10,
    256 << 10,
    1 << 20,
];

/// What is copied.
pub const KINDS: [&str; 4] =
    ["to the host", "from the host", "from the host, two rows", "within the GPU"];

/// Measures each kind.
///
/// # Errors
/// The device's failure.
pub fn measure(
    options: &Options,
    common: &Common,
    world: &World,
    gpu: Gpu,
    save: &mut Save<'_>,
) -> Result<(), Failure> {
    let most = 1 << 20;
    let (from, mut into) = (on_gpu(world, gpu, most)?, on_gpu(world, gpu, most)?);
    let mut host = Pinned::new(from.device(), usize::try_from((most + GAP) / 4).unwrap_or(0));
    // One number all over.
    let (mut from, all) = (from, usize::try_from((most + GAP) / 4).unwrap_or(0));
    host.first(all).fill(7.0);
    host.store(&mut from, most)?;
    let control = world.comm().dup()?;
    for bytes in SIZES {
        let mut rows = Vec::new();
        for kind in KINDS {
            let summary = together(&control, (common.seconds() / 4.0, 3), || match kind {
                "to the host" => host.fetch(&from, bytes),
                "from the host" => host.store(&mut into, bytes),
                "within the GPU" => copy_within(&mut into, &from, bytes),
                _ => host.store_rows(&mut into, bytes),
            })?;
            let right = is_right(kind, (&mut host, &from, &mut into), bytes)?;
            let case = Bytes(bytes).to_string();
            let row = Row::new(case, "copy", &options.space, kind, bytes, summary);
            rows.push(row.verified(right));
        }
        save.rows(rows)?;
    }
    Ok(())
}

/// Whether a copy of this kind moves numbers.
fn is_right(
    kind: &str,
    (host, from, into): (&mut Pinned, &DeviceBuf, &mut DeviceBuf),
    bytes: u64,
) -> Result<bool, Failure> {
    let count = usize::try_from(bytes / 4).unwrap_or(0);
    host.first(count).fill(3.0);
    host.store(into, bytes)?;
    host.first(count).fill(4.0);
    let wanted = match kind {
        "to the host" => 3.0,
        "within the GPU" => {
            host.fetch(from, bytes)?;
            let wanted = host.first(1)[0];
            copy_within(into, from, bytes)?;
            wanted
        }
        "from the host" => {
            host.store(into, bytes)?;
            4.0
        }
        _ => {
            // Behind the gap, too.
            host.first(count + usize::try_from(GAP / 4).unwrap_or(0)).fill(4.0);
            host.store_rows(into, bytes)?;
            4.0
        }
    };
    host.first(count).fill(-1.0);
    host.fetch(into, bytes)?;
    Ok(host.first(count).iter().all(|number| number.to_bits() == wanted.to_bits()))
}
