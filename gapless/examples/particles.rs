//! Particles that move on a ring, which the ranks divide among each other: those that leave a rank's part go to its
//! neighbour, as structs, however many there are.
//!
//! ```sh
//! cargo build --release -p gapless --example particles
//! cargo run --release -- run -n 4 target/release/examples/particles
//! ```

use gapless::prelude::*;

/// A particle; nobody sends the padding behind `kind`.
#[derive(Datatype, Clone, Debug, Default, PartialEq)]
#[repr(C)]
struct Particle {
    kind: u8,
    /// In parts of a rank: 0 to 1 is here.
    position: f64,
    velocity: [f32; 2],
}

/// How many particles each rank begins with, and how many steps they move.
const PARTICLES: u32 = 1000;
const STEPS: i32 = 100;

fn main() -> Result<(), gapless::Error> {
    let world = World::init()?;
    let comm = world.comm();
    let right = (comm.rank() + 1) % comm.size();
    let left = (comm.rank() + comm.size() - 1) % comm.size();

    let begin = |i: u32| Particle {
        kind: (i % 3).to_le_bytes()[0],
        position: f64::from(i) / f64::from(PARTICLES),
        velocity: [0.05 * (i % 7) as f32 - 0.15, 1.0],
    };
    let mut here: Vec<Particle> = (0..PARTICLES).map(begin).collect();
    for step in 0..STEPS {
        for particle in &mut here {
            particle.position += f64::from(particle.velocity[0]);
        }
        let mut to_left: Vec<_> = here.extract_if(.., |particle| particle.position < 0.0).collect();
        let mut to_right: Vec<_> =
            here.extract_if(.., |particle| particle.position >= 1.0).collect();
        to_left.iter_mut().for_each(|particle| particle.position += 1.0);
        to_right.iter_mut().for_each(|particle| particle.position -= 1.0);

        // The requests own the lists, and the receives make theirs as long as the messages are.
        let (tag_left, tag_right) = (2 * step, 2 * step + 1);
        let sent = [
            comm.isend_owned(to_left, left, tag_left)?,
            comm.isend_owned(to_right, right, tag_right)?,
        ];
        here.extend(comm.recv_vec::<Particle>(right, tag_left)?.0);
        here.extend(comm.recv_vec::<Particle>(left, tag_right)?.0);
        for request in sent {
            request.wait().1?;
        }
    }

    let (mut all, mut fewest) = (here.len(), here.len());
    comm.allreduce(InPlace, &mut all, ReduceOp::Sum)?;
    comm.allreduce(InPlace, &mut fewest, ReduceOp::Min)?;
    assert_eq!(all, comm.size() as usize * PARTICLES as usize, "a particle is lost");
    if comm.rank() == 0 {
        println!("{all} particles after {STEPS} steps; {fewest} or more on each rank");
    }
    world.finalize()
}
