//! The images: 8 × 8 pixels each, of handwritten digits. `data/README.md` says where they are from.

/// Pixels of an image.
pub const PIXELS: usize = 64;
/// Digits.
pub const CLASSES: usize = 10;
/// The images that nothing is learnt from: the last ones, of other writers than the first.
const TESTED: usize = 297;

const TEXT: &str = include_str!("../data/digits.csv");

/// An image, and what it is of.
#[derive(Clone, Debug, PartialEq)]
pub struct Image {
    /// Shades, from 0 to 1.
    pub pixels: [f32; PIXELS],
    /// The digit.
    pub digit: usize,
}

/// What is learnt from, and what is tested with.
#[derive(Clone, Debug)]
pub struct Images {
    /// What is learnt from.
    pub train: Vec<Image>,
    /// What is tested with.
    pub test: Vec<Image>,
}

/// Reads the images that ship with this example.
///
/// # Errors
/// A line that is none.
pub fn images() -> Result<Images, String> {
    let image = |(at, line): (usize, &str)| {
        image(line).ok_or_else(|| format!("line {} of the images: {line:?}", at + 1))
    };
    let mut train = TEXT.lines().enumerate().map(image).collect::<Result<Vec<_>, _>>()?;
    let test = train.split_off(train.len().saturating_sub(TESTED));
    Ok(Images { train, test })
}

fn image(line: &str) -> Option<Image> {
    let mut numbers = line.split(',').map(|number| number.parse::<u8>().ok());
    let mut pixels = [0.0; PIXELS];
    for pixel in &mut pixels {
        *pixel = f32::from(numbers.next()??) / 16.0;
    }
    let digit = usize::from(numbers.next()??);
    (digit < CLASSES && numbers.next().is_none()).then_some(Image { pixels, digit })
}
