#pragma once
// What Prometheus sees: the same snapshot that Stats answers with, as metric families in prometheus-cpp's data model.
//
// Nothing is counted here. Each buffer counts for itself on its own thread; a scrape asks each thread for a copy and renders it,
// so that an insert or a draw touches no shared counter, a scrape takes no lock that they take, and the series of a dropped
// buffer are gone with it. `buffer` is the only free label; buffer names are checked when they are created.

#include <string>

#include "server/codec.h"

namespace replay::server {

// The text exposition format, version 0.0.4.
std::string RenderMetrics(const ServerStats& stats);

}  // namespace replay::server
