//! A datatype used alone: describe parts of a matrix, pack them, put them somewhere else. No
//! processes, no messages; only this crate.
//!
//! `cargo run -p gapless-dtype --example datatype_alone`

use gapless_dtype::{Convertor, Datatype, Primitive, Run};

const N: usize = 5;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A row-major 5 × 5 matrix; each element tells its row and column.
    let mut matrix = [0_u8; N * N];
    for (at, element) in matrix.iter_mut().enumerate() {
        *element = u8::try_from(10 * (at / N) + at % N)?;
    }
    let byte = Datatype::from(Primitive::of::<u8>());

    // A column: five blocks of one element, a row apart.
    let column = Datatype::vector(5, 1, 5, &byte)?;
    show("column 2", &column, &matrix, 2)?;

    // The upper triangle: in row i, 5 - i elements from the diagonal on.
    let triangle = Datatype::indexed(&[5, 4, 3, 2, 1], &[0, 6, 12, 18, 24], &byte)?;
    show("upper triangle", &triangle, &matrix, 0)?;

    // The transpose: columns counted one element apart, so five of them are the whole matrix.
    let transpose = Datatype::contiguous(5, &Datatype::resized(0, 1, &column)?)?;
    show("transpose", &transpose, &matrix, 0)?;

    // Unpacking is the same the other way round: the packed column becomes a row.
    let mut packed = [0; N];
    Convertor::new(&column.commit()?, 1)?.pack(&matrix, 2, &mut packed)?;
    let row = Datatype::contiguous(5, &byte)?.commit()?;
    let mut other = [0; N * N];
    Convertor::new(&row, 1)?.unpack(&packed, &mut other, 3 * N)?;
    println!("column 2 as row 3 of another matrix:");
    for row in other.chunks(N) {
        println!("  {row:02?}");
    }
    Ok(())
}

/// Prints what a committed type is and what it picks from `matrix`, whose index `origin` is where
/// the type's displacements count from.
fn show(
    name: &str,
    datatype: &Datatype,
    matrix: &[u8],
    origin: usize,
) -> Result<(), Box<dyn std::error::Error>> {
    let layout = datatype.commit()?;
    println!(
        "{name}: {} bytes in {} blocks, extent {}, shape {:?}",
        layout.size(),
        layout.blocks(),
        layout.extent(),
        layout.shape(),
    );
    println!("{}", layout.program());

    // A convertor is a cursor over the packed bytes; it can stand anywhere and stop anywhere.
    let mut convertor = Convertor::new(&layout, 1)?;
    let mut packed = vec![0; usize::try_from(convertor.packed_size())?];
    let (front, back) = packed.split_at_mut(3);
    convertor.pack(matrix, origin, front)?;
    convertor.pack(matrix, origin, back)?;
    println!("packed: {packed:02?}");

    // The same bytes as runs, a few at a time, for whoever moves them by other means.
    convertor.seek(0)?;
    let mut runs = [Run::default(); 4];
    print!("runs:");
    loop {
        let (listed, _) = convertor.iov(&mut runs, u64::MAX);
        for run in &runs[..listed] {
            print!(" {}+{}", run.displacement, run.len);
        }
        if listed < runs.len() {
            break;
        }
    }
    println!("\n");
    Ok(())
}
