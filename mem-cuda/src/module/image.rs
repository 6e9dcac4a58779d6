//! Whether a kernel image is all there. The driver is given an address only and finds the end by what
//! the image says; one that was cut off would make it read on.

use crate::CudaError;

const ELF: [u8; 4] = [0x7f, b'E', b'L', b'F'];
const FAT_BINARY: [u8; 4] = 0xBA55_ED50_u32.to_le_bytes();

/// The image in memory aligned for the driver, with a NUL behind it.
///
/// # Errors
/// It is none of the three kinds, or incomplete.
pub(super) fn complete(image: &[u8]) -> Result<Vec<u64>, CudaError> {
    let malformed = |reason| CudaError::Image { reason };
    match image.get(..4) {
        Some(magic) if magic == ELF => {
            elf_is_complete(image)
                .filter(|complete| *complete)
                .ok_or(malformed("the cubin is cut off"))?;
        }
        Some(magic) if magic == FAT_BINARY => {
            fat_binary_is_complete(image)
                .filter(|complete| *complete)
                .ok_or(malformed("the fat binary is cut off"))?;
        }
        _ => {
            let text = std::str::from_utf8(image)
                .map_err(|_| malformed("neither a cubin, nor a fat binary, nor PTX"))?;
            let text = text.trim_end_matches('\0');
            if text.contains('\0') || !text.contains(".version") {
                return Err(malformed("neither a cubin, nor a fat binary, nor PTX"));
            }
        }
    }
    // At least one zero byte follows.
    let mut words = vec![0u64; image.len() / 8 + 1];
    for (word, bytes) in words.iter_mut().zip(image.chunks(8)) {
        let mut whole = [0u8; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_ne_bytes(whole);
    }
    Ok(words)
}

/// What the linker is to take a complete image for (`CUjitInputType`), and its length: that of PTX has its NUL.
pub(super) fn kind(image: &[u8]) -> (u32, usize) {
    const CUBIN: u32 = 0;
    const PTX: u32 = 1;
    const FAT: u32 = 2;
    match image.get(..4) {
        Some(magic) if magic == ELF => (CUBIN, image.len()),
        Some(magic) if magic == FAT_BINARY => (FAT, image.len()),
        _ => {
            let end = image.iter().position(|byte| *byte == 0).unwrap_or(image.len());
            (PTX, end + 1)
        }
    }
}

fn number<const N: usize>(image: &[u8], at: usize) -> Option<u64> {
    let mut wide = [0u8; 8];
    wide[..N].copy_from_slice(image.get(at..at.checked_add(N)?)?);
    Some(u64::from_le_bytes(wide))
}

/// Whether both header tables of a 64-bit little-endian ELF file, and all they point to, lie in it.
fn elf_is_complete(image: &[u8]) -> Option<bool> {
    const CLASS_64_LITTLE: [u8; 2] = [2, 1];
    const SECTION_WITHOUT_BYTES: u64 = 8;
    if image.get(4..6)? != CLASS_64_LITTLE {
        return Some(false);
    }
    let inside =
        |from: u64, len: u64| from.checked_add(len).is_some_and(|end| end <= image.len() as u64);
    let segments =
        (number::<8>(image, 0x20)?, number::<2>(image, 0x36)?, number::<2>(image, 0x38)?);
    let sections =
        (number::<8>(image, 0x28)?, number::<2>(image, 0x3a)?, number::<2>(image, 0x3c)?);
    for (from, each, count) in [segments, sections] {
        if !inside(from, each * count) {
            return Some(false);
        }
    }
    let (from, each, count) = sections;
    if count > 0 && each < 0x40 {
        return Some(false);
    }
    for section in 0..count {
        let at = usize::try_from(from + section * each).ok()?;
        let kind = number::<4>(image, at + 4)?;
        let (offset, len) = (number::<8>(image, at + 0x18)?, number::<8>(image, at + 0x20)?);
        if kind != SECTION_WITHOUT_BYTES && !inside(offset, len) {
            return Some(false);
        }
    }
    Some(true)
}

/// Whether header and contents of a fat binary lie in it.
fn fat_binary_is_complete(image: &[u8]) -> Option<bool> {
    let header = number::<2>(image, 6)?;
    let contents = number::<8>(image, 8)?;
    Some(header.checked_add(contents)? <= image.len() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn elf(section_offset: u64, section_len: u64) -> Vec<u8> {
        let mut image = vec![0u8; 0x40 + 0x40 + 16];
        image[..4].copy_from_slice(&ELF);
        image[4..6].copy_from_slice(&[2, 1]);
        image[0x28..0x30].copy_from_slice(&0x40u64.to_le_bytes());
        image[0x3a..0x3c].copy_from_slice(&0x40u16.to_le_bytes());
        image[0x3c..0x3e].copy_from_slice(&1u16.to_le_bytes());
        image[0x44..0x48].copy_from_slice(&1u32.to_le_bytes());
        image[0x58..0x60].copy_from_slice(&section_offset.to_le_bytes());
        image[0x60..0x68].copy_from_slice(&section_len.to_le_bytes());
        image
    }

    #[test]
    fn whole_files_pass_and_cut_ones_do_not() {
        let whole = elf(0x80, 16);
        assert!(complete(&whole).is_ok());
        for len in 4..whole.len() {
            assert!(complete(&whole[..len]).is_err(), "{len} bytes");
        }
        assert!(complete(&elf(0x80, 17)).is_err());
        assert!(complete(&elf(u64::MAX, 2)).is_err());
        let mut no_bytes = elf(u64::MAX, 2);
        no_bytes[0x44] = 8;
        assert!(complete(&no_bytes).is_ok());
    }

    #[test]
    fn fat_binaries() {
        let mut fat = vec![0u8; 16 + 24];
        fat[..4].copy_from_slice(&FAT_BINARY);
        fat[6..8].copy_from_slice(&16u16.to_le_bytes());
        fat[8..16].copy_from_slice(&24u64.to_le_bytes());
        assert!(complete(&fat).is_ok());
        for len in 4..fat.len() {
            assert!(complete(&fat[..len]).is_err(), "{len} bytes");
        }
    }

    #[test]
    fn the_linker_is_told_what_an_image_is() {
        assert_eq!(kind(b".version 7.0"), (1, 13));
        assert_eq!(kind(b".version 7.0\0\0"), (1, 13));
        assert_eq!((kind(&elf(0x80, 16)).0, kind(&FAT_BINARY)), (0, (2, 4)));
    }

    #[test]
    fn text_gets_its_end() {
        let words = complete(b".version 7.0\n.target").unwrap();
        assert_eq!(words.len(), 3);
        assert_eq!(words[2].to_ne_bytes()[4..], [0; 4]);
        assert!(complete(b".version 7.0\0").is_ok());
        assert!(complete(b".version\0 7.0").is_err());
        assert!(complete(b"").is_err());
        assert!(complete(&[0xff, 0xfe]).is_err());
        assert!(complete(b"hello").is_err());
    }
}
