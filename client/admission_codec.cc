// The part of codec.h about what a buffer holds back: Acknowledge, ReserveGroup, Admit.

#include "client/reply_reader.h"
#include "client/request_builder.h"

namespace replay {

Frame EncodeAcknowledge(const RequestHead& head, std::string_view buffer, uint64_t lease, std::span<const uint64_t> items,
                        bool give_back) {
  const auto words = static_cast<uint32_t>(items.size() + 1);
  return BuildRequest(head, TextWords(buffer) + words, [&](schema::Request::Builder request) {
    auto acknowledge = request.initAcknowledge();
    acknowledge.setBuffer(AsText(std::string(buffer)));
    acknowledge.setLease(lease);
    acknowledge.setGiveBack(give_back);
    if (items.empty()) return;
    auto list = acknowledge.initItems(static_cast<unsigned>(items.size()));
    for (unsigned i = 0; i < list.size(); ++i) list.set(i, items[i]);
  });
}

Result<Frame> EncodeReserveGroup(const RequestHead& head, std::string_view buffer, const Reservation& reservation,
                                 ReserveAction action) {
  if (reservation.group_id.empty() || reservation.group_id.size() > kMaxIdBytes)
    return Refuse("group_id has " + std::to_string(reservation.group_id.size()) + " bytes: it must have 1 to " +
                  std::to_string(kMaxIdBytes));
  for (const auto& [field, span] : {std::pair("lease", reservation.lease), std::pair("deadline", reservation.deadline)})
    if (span.count() < 0 || span.count() > static_cast<int64_t>(kMaxLeaseMs))
      return Refuse(std::string(field) + " is " + std::to_string(span.count()) + " ms: it must be 100 to " +
                    std::to_string(kMaxLeaseMs));
  return BuildRequest(head, TextWords(buffer) + TextWords(reservation.group_id), [&](schema::Request::Builder request) {
    auto reserve = request.initReserveGroup();
    reserve.setBuffer(AsText(std::string(buffer)));
    reserve.setGroupId(AsText(reservation.group_id));
    reserve.setAction(static_cast<schema::ReserveGroup::Action>(action));
    reserve.setSize(reservation.size);
    reserve.setLeaseMs(static_cast<uint32_t>(reservation.lease.count()));
    reserve.setDeadlineMs(static_cast<uint32_t>(reservation.deadline.count()));
    reserve.setMissing(static_cast<schema::MissingMembers>(reservation.missing));
    reserve.setBatch(reservation.batch);
  });
}

Frame EncodeAdmit(const RequestHead& head, std::string_view buffer, const AdmissionRequest& admission) {
  return BuildRequest(head, TextWords(buffer), [&](schema::Request::Builder request) {
    auto admit = request.initAdmit();
    admit.setBuffer(AsText(std::string(buffer)));
    admit.setCount(admission.count);
    admit.setBatch(admission.batch);
    admit.setHasMaxStaleness(admission.max_staleness.has_value());
    admit.setMaxStaleness(admission.max_staleness.value_or(0));
  });
}

Result<uint32_t> DecodeAcknowledge(const ReceivedReply& received) {
  return Decode<uint32_t>(received, schema::Reply::ACKNOWLEDGE, [](schema::Reply::Reader reply) -> Result<uint32_t> {
    return uint32_t{reply.getAcknowledge().getCount()};
  });
}

Result<ReservedGroup> DecodeReserveGroup(const ReceivedReply& received) {
  return Decode<ReservedGroup>(received, schema::Reply::RESERVE_GROUP,
                               [](schema::Reply::Reader reply) -> Result<ReservedGroup> {
                                 const auto reserved = reply.getReserveGroup();
                                 return ReservedGroup{reserved.getPresent(), reserved.getSize(), reserved.getFirstItem()};
                               });
}

Result<Admission> DecodeAdmit(const ReceivedReply& received) {
  return Decode<Admission>(received, schema::Reply::ADMIT, [](schema::Reply::Reader reply) -> Result<Admission> {
    const auto admit = reply.getAdmit();
    return Admission{admit.getCredits(), admit.getLive(), admit.getReserved()};
  });
}

}  // namespace replay
