//! What the daemon's own bounds refused: its metric family and vocabulary, apart from every quota outcome (contract §8).

use std::error::Error;

use prometheus::{IntCounterVec, Opts, Registry};

/// Why the daemon itself turned something away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rejection {
    /// The listener had its most connections open.
    TooManyConnections,
    /// The request head was too large or had too many lines.
    HeadTooLarge,
    /// The body of a decision request was too large.
    BodyTooLarge,
    /// A client took too long to send its first request, or a body.
    SlowClient,
    /// The request was not HTTP, or not one this listener understands.
    BadRequest,
}

impl Rejection {
    const ALL: [Self; 5] = [
        Self::TooManyConnections,
        Self::HeadTooLarge,
        Self::BodyTooLarge,
        Self::SlowClient,
        Self::BadRequest,
    ];

    /// The word of the metric label.
    pub(crate) const fn as_str(self) -> &'static str {
        match self {
            Self::TooManyConnections => "too_many_connections",
            Self::HeadTooLarge => "head_too_large",
            Self::BodyTooLarge => "body_too_large",
            Self::SlowClient => "slow_client",
            Self::BadRequest => "bad_request",
        }
    }

    /// What ended a connection, where it was one of our bounds; a client that hung up is none.
    pub(crate) fn of_connection(error: &(dyn Error + 'static)) -> Option<Self> {
        let mut cause = Some(error);
        while let Some(error) = cause {
            if let Some(error) = error.downcast_ref::<hyper::Error>() {
                return if error.is_parse_too_large() {
                    Some(Self::HeadTooLarge)
                } else if error.is_timeout() {
                    Some(Self::SlowClient)
                } else if error.is_parse() {
                    Some(Self::BadRequest)
                } else {
                    None
                };
            }
            cause = error.source();
        }
        None
    }
}

/// Counts rejections. Clones share the counters.
#[derive(Clone, Debug)]
pub(crate) struct Protection {
    rejections: IntCounterVec,
}

impl Protection {
    /// The counters in `registry` of the listener called `listener`, every reason at zero.
    ///
    /// # Errors
    ///
    /// The registry has them already.
    pub(crate) fn register(
        registry: &Registry,
        listener: &'static str,
    ) -> prometheus::Result<Self> {
        let options = Opts::new(
            "quotad_http_rejections_total",
            "Connections and requests the daemon's own bounds refused; never quota outcomes.",
        )
        .const_label("listener", listener);
        let rejections = IntCounterVec::new(options, &["reason"])?;
        for rejection in Rejection::ALL {
            rejections
                .with_label_values(&[rejection.as_str()])
                .inc_by(0);
        }
        registry.register(Box::new(rejections.clone()))?;
        Ok(Self { rejections })
    }

    /// Counts one.
    pub(crate) fn count(&self, rejection: Rejection) {
        self.rejections
            .with_label_values(&[rejection.as_str()])
            .inc();
    }
}

#[cfg(test)]
impl Protection {
    /// How often it was counted.
    pub(crate) fn counted(&self, rejection: Rejection) -> u64 {
        self.rejections
            .with_label_values(&[rejection.as_str()])
            .get()
    }
}
