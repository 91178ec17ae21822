#pragma once
// Load with a known oracle: writers that send requests ahead, update and delete some of what they wrote, and a sampler whose
// batches can be asked for again.
//
//   Load load({.address = daemon.address(), .seed = 7}, &writings, &sampling);
//   SleepMs(30);  daemon.Kill();  load.Stop();              // all it was answered stands in `writings` now
//   Resend(daemon.address(), &writings, &report);           // after a restart: what was not answered, as it was sent
//
// A writer's requests carry its id and a sequence, made by hand here: the oracle must know which of them were answered.

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "tests/fault/oracle.h"
#include "tests/support/raw_client.h"

namespace replay::fault {

inline constexpr uint64_t kRepeatable = 20;  // sequences behind the newest whose receipts the server is to keep

struct LoadOptions {
  std::string address;
  uint64_t seed = 0;
  bool changes = true;                     // Updates and Deletes
  std::vector<std::string> levels = {""};  // one of these is asked for
  double pause_ms = 1.5;                   // at most, between the bursts of a writer
  bool may_refuse = false;                 // what is injected makes the daemon refuse; else that is a violation
};

// The sampler's last batch that was answered.
struct Sampling {
  std::string buffer;  // "": none is drawn
  int64_t step = 0;
  std::vector<uint64_t> drawn;
  uint64_t batches = 0;
};

class Load {
 public:
  // Connected when it returns.
  Load(const LoadOptions& options, std::vector<Writing>* writings, Sampling* sampling, Report* report);
  ~Load() { Stop(); }
  // Waits until each thread has noticed that its connection is gone, or does nothing more.
  void Stop();
  // What is answered from now on counts as not answered: nobody can say whether that was before or after the injection.
  void IgnoreAnswers() { ignore_ = true; }
  const std::atomic<int64_t>& acknowledged() const { return acknowledged_; }  // trajectories

 private:
  void Write(Writing* writing, test::RawClient connection, uint64_t seed);
  bool WriteBurst(Writing* writing, test::RawClient* connection, std::mt19937_64* chance);
  bool TakeReply(Writing* writing, OfferedRequest* request, test::RawClient* connection);
  bool Change(Writing* writing, Client* client, std::mt19937_64* chance);
  void Sample(Sampling* sampling);

  const LoadOptions options_;
  Report& report_;
  std::atomic<bool> stop_{false}, ignore_{false};
  std::atomic<int64_t> acknowledged_{0};
  std::vector<std::thread> threads_;
};

// Adds a request to the writing: `size` trajectories, a group if there are several.
OfferedRequest& Offer(Writing* writing, uint32_t size, uint32_t length, const std::string& level);
// Sends these and takes the answers.
void SendRequests(const std::string& address, Writing* writing, std::span<OfferedRequest*> requests, Report* report);

// What was not answered, in order, and the last two that were: each is a duplicate if it had been there, and stored if it had not.
void Resend(const std::string& address, std::vector<Writing>* writings, Report* report);
// The last batch again.
void CheckPlan(Client& client, const Sampling& sampling, Report* report);
SampleOptions PlanOf(int64_t step);

}  // namespace replay::fault
