//! A CPU's caches, from sysfs, or from `/proc/cpuinfo` where sysfs hides them.

use serde::{Deserialize, Serialize};

use super::{Files, field};

/// One cache of the first CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cache {
    /// 1 is nearest to the core.
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Size of this one cache, in bytes.
    pub bytes: u64,
    /// The CPUs that share it, as the kernel lists them; empty when unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub shared_by: String,
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// The first CPU's caches, by level, data before instructions.
pub(super) fn read(files: &Files<'_>, cpuinfo: &str) -> Vec<Cache> {
    let mut caches: Vec<Cache> = files
        .entries("sys/devices/system/cpu/cpu0/cache")
        .iter()
        .filter_map(|folder| {
            let text = |name: &str| files.text(folder.join(name));
            Some(Cache {
                level: text("level")?.parse().ok()?,
                kind: kind(&text("type")?)?,
                bytes: size(&text("size")?)?,
                shared_by: text("shared_cpu_list").unwrap_or_default(),
            })
        })
        .collect();
    caches.sort_by_key(|cache| (cache.level, cache.kind as u8));
    if caches.is_empty() {
        caches.extend(from_cpuinfo(cpuinfo));
    }
    caches
}

/// `cache size : 36608 KB` is the last level's size on Intel's CPUs. Elsewhere it is another level's
/// (AMD: the second), which would be a wrong answer where none is better.
fn from_cpuinfo(cpuinfo: &str) -> Option<Cache> {
    field(cpuinfo, "vendor_id").filter(|vendor| *vendor == "GenuineIntel")?;
    let kib: u64 = field(cpuinfo, "cache size")?.strip_suffix("KB")?.trim().parse().ok()?;
    Some(Cache {
        level: 3,
        kind: CacheKind::Unified,
        bytes: kib.checked_mul(1024)?,
        shared_by: String::new(),
    })
}

fn kind(text: &str) -> Option<CacheKind> {
    match text {
        "Data" => Some(CacheKind::Data),
        "Instruction" => Some(CacheKind::Instruction),
        "Unified" => Some(CacheKind::Unified),
        _ => None,
    }
}

/// `48K`, `32M`, `1G` or plain bytes.
fn size(text: &str) -> Option<u64> {
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'K') => (&text[..at], 1 << 10),
        (at, 'M') => (&text[..at], 1 << 20),
        (at, 'G') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_kernel() {
        for (text, bytes) in [
            ("48K", Some(49_152)),
            ("32768K", Some(32 << 20)),
            ("2M", Some(2 << 20)),
            ("512", Some(512)),
            ("", None),
            ("K", None),
            ("-1K", None),
            ("99999999999999999999K", None),
            ("18446744073709551615K", None),
        ] {
            assert_eq!(size(text), bytes, "{text}");
        }
    }
}
