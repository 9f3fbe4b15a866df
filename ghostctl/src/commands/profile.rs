//! `seccomp-profile`: what an OCI runtime needs in order to have a container's memory held.

use super::read_file;
use crate::cli::SeccompProfile;
use crate::client::Client;
use crate::error::Error;
use crate::output;
use crate::profile;
use ghost_model::{Kind, Problem};
use ghost_rm::tenant::NUMBERS;
use std::path::PathBuf;

pub(super) async fn profile(client: &Client, args: SeccompProfile) -> Result<(), Error> {
    let base = match &args.base {
        Some(path) => {
            let text = read_file(path)?;
            let base = serde_json::from_str(&text);
            Some(base.map_err(|e| Error::usage(format!("{}: {e}", path.display())))?)
        }
        None => None,
    };
    let listener = listener(client, args.listener).await?;
    let name = args.container.as_ref();
    let made = profile::profile(base, NUMBERS, &listener, name).map_err(|e| {
        let of = args.base.unwrap_or_default();
        Error::usage(format!("{}: {e}", of.display()))
    })?;
    output::document(&made)
}

async fn listener(client: &Client, given: Option<PathBuf>) -> Result<PathBuf, Error> {
    let listener = match given {
        Some(path) => path,
        None => client.notify_socket().await?.ok_or_else(|| {
            let detail = "this ghostd holds no memory by seccomp listeners";
            Problem::new(Kind::Unsupported, detail).hint("`ghostctl info`")
        })?,
    };
    if listener.is_absolute() {
        Ok(listener)
    } else {
        // Runtimes take it from their own working directory, or refuse it.
        let listener = listener.display();
        Err(Error::usage(format!(
            "{listener}: a listener's path begins with /"
        )))
    }
}
