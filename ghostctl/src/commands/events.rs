//! `events`: what happened, from ghostd's stream of server-sent events.

use crate::cli::{Events, Since};
use crate::client::{Client, Target};
use crate::error::Error;
use crate::output;
use ghost_model::report::Event;
use http_body_util::BodyExt;
use std::time::Duration;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

/// ghostd sends what it keeps at once; when it has been quiet for this long, that was all.
const QUIET: Duration = Duration::from_millis(300);

pub(super) async fn events(client: &Client, args: Events) -> Result<(), Error> {
    let json = args.reading.json()?;
    let last = match args.since {
        Some(Since::Id(id)) => Some(id),
        Some(Since::Time(_)) => Some(0),
        None if args.follow => None,
        None => Some(0),
    };
    each(client, last, args.follow, |data, event| {
        match (is_since(&event, args.since), json) {
            (false, _) => Ok(()),
            (true, true) => output::line(data),
            (true, false) => output::line(text(&event)),
        }
    })
    .await
}

/// All events that ghostd keeps.
pub(super) async fn kept(client: &Client) -> Result<Vec<Event>, Error> {
    let mut all = Vec::new();
    each(client, Some(0), false, |_, event| {
        all.push(event);
        Ok(())
    })
    .await?;
    Ok(all)
}

/// Hands over each event, as it was sent and as it is understood.
async fn each(
    client: &Client,
    last: Option<u64>,
    follow: bool,
    mut take: impl FnMut(&str, Event) -> Result<(), Error>,
) -> Result<(), Error> {
    let answer = |why: String| Error::Answer {
        request: "GET /v1/events".into(),
        why,
    };
    let mut body = client.stream(Target::new("/v1/events"), last).await?;
    let mut lines = Lines::default();
    loop {
        let frame = if follow {
            body.frame().await
        } else {
            match tokio::time::timeout(QUIET, body.frame()).await {
                Ok(frame) => frame,
                Err(_) => return Ok(()),
            }
        };
        let Some(frame) = frame else {
            return Ok(());
        };
        let frame = frame.map_err(|e| answer(e.to_string()))?;
        for data in lines.push(frame.data_ref().map_or(&[][..], |d| d)) {
            let event = serde_json::from_str(&data).map_err(|e| answer(e.to_string()))?;
            take(&data, event)?;
        }
    }
}

fn is_since(event: &Event, since: Option<Since>) -> bool {
    match since {
        Some(Since::Time(from)) => {
            OffsetDateTime::parse(&event.at, &Rfc3339).is_ok_and(|at| at >= from)
        }
        _ => true,
    }
}

fn text(e: &Event) -> String {
    let whom = e.container.as_ref().map_or("-", |c| c.as_str());
    format!("{}  {}  {}  {whom}: {}", e.id, e.at, e.what, e.detail)
}

/// The `data` of the events in a byte stream.
#[derive(Debug, Default)]
struct Lines {
    rest: Vec<u8>,
    data: Vec<String>,
}

impl Lines {
    /// Takes bytes as they come; gives the data of each event that is now whole.
    fn push(&mut self, bytes: &[u8]) -> Vec<String> {
        self.rest.extend_from_slice(bytes);
        let mut out = Vec::new();
        while let Some(end) = self.rest.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.rest.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line);
            let line = line.trim_end_matches(['\r', '\n']);
            if let Some(data) = line.strip_prefix("data:") {
                self.data
                    .push(data.strip_prefix(' ').unwrap_or(data).to_owned());
            } else if line.is_empty() && !self.data.is_empty() {
                out.push(std::mem::take(&mut self.data).join("\n"));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_cut_out_of_a_stream_wherever_it_breaks() {
        let stream = b": hello\n\nid: 1\ndata: {\"a\":\ndata: 1}\n\ndata:x\r\n\r\nid: 3\n\n";
        for size in [1, 2, 7, stream.len()] {
            let mut lines = Lines::default();
            let all: Vec<String> = stream.chunks(size).flat_map(|c| lines.push(c)).collect();
            assert_eq!(all, ["{\"a\":\n1}", "x"], "chunks of {size}");
        }
    }
}
