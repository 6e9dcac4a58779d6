//! What a blocking collective does if all ranks' buffers lie on one GPU, or on several.

use gapless::tuning::coll::{Gpu, HyperQStep, Mode, Settings};
use gapless_coll::hyperq::{Frame, Kind};
use gapless_coll::{Call, HyperQ};
use std::fmt::Write;

/// What is said of a call among so many ranks; nothing if such calls do not go there. Ends with a line break.
pub(super) fn on_one_gpu(settings: &Settings, call: &Call<'_>, ranks: usize) -> String {
    let mut text = String::from("buffers of all ranks on one GPU: ");
    let Some(frame) = Frame::new(call, ranks) else { return String::new() };
    if !HyperQ::asks(settings, call, ranks) {
        text += match settings.mode {
            Mode::Off => "as above (hyperq.mode = \"off\")\n",
            _ => "as above, as it is short (hyperq.bytes_min)\n",
        };
        return text;
    }
    let led = matches!(settings.mode, Mode::Auto | Mode::Led);
    let heads = "buffers without gaps on several GPUs: one rank on each works for all there\n";
    if settings.mode == Mode::Led {
        text += "one rank works for all, if there are no gaps (hyperq.mode = \"leader-driven\")\n";
        return text + heads;
    }
    let copies =
        [(HyperQStep::Gather, frame.gather_bytes()), (HyperQStep::Scatter, frame.scatter_bytes())];
    let steps = copies.map(|(step, bytes)| (step, bytes, frame.copies(step)));
    let _ = writeln!(
        text,
        "rank {} leads, {} copies to its buffer and {} from there, hyperq.mode = \"{}\"",
        frame.leader,
        steps[0].2,
        steps[1].2,
        settings.mode.name(),
    );
    if !matches!(settings.mode, Mode::Auto | Mode::Static) {
        return text;
    }
    for Gpu { model, mps, .. } in &settings.table.gpus {
        let counts = steps.map(|(step, bytes, copies)| {
            let gpu = (model.as_str(), *mps);
            settings.table.counts(gpu, step, (ranks, copies), bytes).count(Kind::Staged)
        });
        let state = if *mps { "with" } else { "without" };
        let [gather, scatter] = counts;
        let _ = writeln!(
            text,
            "  {model} {state} the Multi-Process Service: {gather} of the gather and {scatter} of the scatter are \
             host-staged, the others by IPC",
        );
    }
    if settings.mode == Mode::Auto {
        text += "  a GPU that the table does not know: as earlier calls were quickest\n";
    }
    if led {
        text += "  the same, without gaps: one rank works for all\n";
        text += heads;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless::tuning::coll::Entry;

    #[test]
    fn what_is_said_depends_on_the_settings() {
        let call = Call::Allgather { len: 1 << 20, in_place: false };
        let mut settings = Settings::default();
        let said = |settings: &Settings| on_one_gpu(settings, &call, 5);
        assert!(said(&settings).contains("rank 0 leads, 4 copies to its buffer and 4 from there"));
        let entry = Entry { step: HyperQStep::Gather, processes: 5, bytes: 64, staged: 3 };
        let gpu = Gpu { model: "NVIDIA H200".to_owned(), mps: true, entries: vec![entry] };
        settings.table.gpus.push(gpu);
        let text = said(&settings);
        assert!(
            text.contains("H200 with the Multi-Process Service: 3 of the gather and 0 of"),
            "{text}"
        );
        assert!(text.contains("on several GPUs: one rank on each"), "{text}");
        settings.mode = Mode::Led;
        assert!(said(&settings).contains("one rank works for all"));
        settings.mode = Mode::Off;
        assert!(said(&settings).contains("off"));
        settings = Settings { bytes_min: 2 << 20, ..Settings::default() };
        assert!(said(&settings).contains("short"));
        assert_eq!(on_one_gpu(&settings, &Call::Barrier, 5), "");
    }
}
