#pragma once
// Reads a Cap'n Proto struct of one segment in place, in a few instructions a field: for the two messages that pass by the
// hundred thousand a second, the trajectory (validate.cc) and the Insert request (server/codec.cc). Everything is bounds-checked.
//
// It only ever says yes to what it fully understands. Whatever is unusual (far pointers, lists of another width, a shorter
// struct of an older writer, overlapping lists) sets `declined`, and the caller reads the message with the generated code, which
// decides and words the error. So a mistake here can cost speed; tests hold that what is accepted here is accepted there, with
// the same values. Byte offsets are those `capnp compile -ocapnp` prints.
//
// Encoding: https://capnproto.org/encoding.html. Pointer word: bits 0-1 kind (0 struct, 1 list), 2-31 offset in words from the
// end of the pointer. Struct: 32-47 data words, 48-63 pointers. List: 32-34 element size code, 35-63 element count.

#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace replay {

class FlatStruct;

// The segment, and what has been found wanting. One for each message.
struct FlatMessage {
  std::span<const uint64_t> words;
  uint64_t unclaimed_words = 0;  // Objects that do not overlap fit into the segment; more than that is declined.
  bool declined = false;

  explicit FlatMessage(std::span<const uint64_t> segment) : words(segment), unclaimed_words(segment.size()) {}

  // [begin, begin + count) of the segment if it lies inside and is not more than what is left; null otherwise.
  const uint64_t* Claim(int64_t begin, uint64_t count) {
    if (begin < 0 || count > unclaimed_words || static_cast<uint64_t>(begin) > words.size() - count) [[unlikely]] {
      declined = true;
      return nullptr;
    }
    unclaimed_words -= count;
    return words.data() + begin;
  }
  // Where the object of a pointer begins.
  int64_t Target(const uint64_t* pointer) const {
    return pointer - words.data() + 1 + (static_cast<int32_t>(static_cast<uint32_t>(*pointer)) >> 2);
  }
};

class FlatStruct {
 public:
  // The struct behind a pointer, with at least the given sections.
  FlatStruct(FlatMessage& message, const uint64_t* pointer, uint32_t data_words, uint32_t pointers) : message_(&message) {
    const uint32_t has_data = static_cast<uint32_t>(*pointer >> 32) & 0xffff,
                   has_pointers = static_cast<uint32_t>(*pointer >> 48);
    if (*pointer == 0 || (*pointer & 3) != 0 || has_data < data_words || has_pointers < pointers) [[unlikely]] {
      message.declined = true;
      return;
    }
    data_ = message.Claim(message.Target(pointer), uint64_t{has_data} + has_pointers);
    if (data_ != nullptr) pointers_ = data_ + has_data;
    data_words_ = has_data;
    pointer_count_ = has_pointers;
  }

  bool ok() const { return data_ != nullptr; }
  uint32_t data_words() const { return data_words_; }  // as many as the writer knew fields for
  uint32_t pointer_count() const { return pointer_count_; }
  // A field of the data section whose default is 0.
  template <typename T>
  T Get(uint32_t byte) const {
    T value;
    std::memcpy(&value, reinterpret_cast<const uint8_t*>(data_) + byte, sizeof value);
    return value;
  }
  const uint64_t* pointer(uint32_t index) const { return pointers_ + index; }

  // A list of 1, 4 or 8-byte numbers; empty for a null pointer.
  template <typename T>
  std::span<const T> List(uint32_t index) const {
    constexpr uint32_t kCode = sizeof(T) == 1 ? 2 : sizeof(T) == 4 ? 4 : 5;
    const uint64_t word = pointers_[index];
    if (word == 0) return {};
    const uint64_t count = word >> 35;
    if ((word & 3) != 1 || ((word >> 32) & 7) != kCode) [[unlikely]] {
      message_->declined = true;
      return {};
    }
    const uint64_t* data = message_->Claim(message_->Target(pointers_ + index), (count * sizeof(T) + 7) / 8);
    return {reinterpret_cast<const T*>(data), data ? count : 0};
  }
  std::string_view Text(uint32_t index) const {
    const auto bytes = List<char>(index);
    if (bytes.empty()) {
      if (pointers_[index] != 0) message_->declined = true;  // Even empty text has its NUL.
      return {};
    }
    if (bytes.back() != 0) [[unlikely]]
      message_->declined = true;
    return {bytes.data(), bytes.size() - 1};
  }
  // A list of structs without pointers: the words of each, `step` apart, at least `data_words`.
  struct Structs {
    const uint64_t* words = nullptr;
    uint32_t count = 0;
    uint32_t step = 0;
  };
  Structs StructList(uint32_t index, uint32_t data_words) const {
    const uint64_t word = pointers_[index];
    if (word == 0) return {};
    const uint64_t list_words = word >> 35;
    if ((word & 3) != 1 || ((word >> 32) & 7) != 7) [[unlikely]] {
      message_->declined = true;
      return {};
    }
    const uint64_t* tag = message_->Claim(message_->Target(pointers_ + index), list_words + 1);
    if (tag == nullptr) return {};
    const uint32_t count = static_cast<uint32_t>(*tag) >> 2, step = static_cast<uint32_t>(*tag >> 32) & 0xffff;
    const uint32_t pointers = static_cast<uint32_t>(*tag >> 48);
    const bool adds_up = (*tag & 3) == 0 && uint64_t{count} * (uint64_t{step} + pointers) == list_words;
    if (!adds_up || (count > 0 && (pointers > 0 || step < data_words))) [[unlikely]] {
      message_->declined = true;
      return {};
    }
    return {tag + 1, count, step};
  }

 private:
  FlatMessage* message_;
  const uint64_t* data_ = nullptr;
  const uint64_t* pointers_ = nullptr;
  uint32_t data_words_ = 0;
  uint32_t pointer_count_ = 0;
};

}  // namespace replay
