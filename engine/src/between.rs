//! Work on two memories, each with an engine of its own.

use crate::EngineError;

/// The first of `tries` that is not refused because of memory: each is a call of another engine, which is made only if
/// those before were refused. If all were, the first one's reason; `None` if there was none to try.
///
/// The engine of one end of a message may not reach the memory of the other end, and the other's may reach both.
pub fn first_willing<T>(
    tries: impl IntoIterator<Item = Result<T, EngineError>>,
) -> Option<Result<T, EngineError>> {
    let mut refused = None;
    for tried in tries {
        match tried {
            Err(error) if error.is_of_memory() => refused = refused.or(Some(Err(error))),
            ended => return Some(ended),
        }
    }
    refused
}

#[cfg(test)]
mod tests {
    use super::*;
    use gapless_mem::{DeviceError, Space};

    #[test]
    fn another_engine_is_asked_only_if_memory_is_the_reason() {
        let space = Space::Cuda { device: 1 };
        let far = |address| {
            let device = "cuda:0".to_owned();
            EngineError::Device(DeviceError::OutOfReach { device, address, space })
        };
        let lost = EngineError::Device(DeviceError::Failed {
            device: "cuda:0".to_owned(),
            operation: "cuLaunchKernel",
            reason: "it is lost".to_owned(),
        });
        let run = |answers: &[Result<u32, EngineError>]| {
            let mut asked = 0;
            let tries = answers.iter().inspect(|_| asked += 1).cloned();
            (first_willing(tries), asked)
        };
        assert_eq!(run(&[Ok(1), Ok(2)]), (Some(Ok(1)), 1));
        assert_eq!(run(&[Err(far(8)), Ok(2)]), (Some(Ok(2)), 2));
        assert_eq!(run(&[Err(far(8)), Err(far(9))]), (Some(Err(far(8))), 2));
        assert_eq!(run(&[Err(lost.clone()), Ok(2)]), (Some(Err(lost)), 1));
        assert_eq!(run(&[]), (None, 0));
    }
}
