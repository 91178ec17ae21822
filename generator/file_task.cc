// The task of a file: JSON Lines, an object with the texts "question" and "answer" a line, as GSM8K comes. Other keys are
// passed over.
//
//   {"question": "Two and two?", "answer": "2+2=4\n#### 4"}     ->     "Question: Two and two?\nAnswer:"  ->  " #### 4"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <set>
#include <utility>

#include "generator/kinds.h"
#include "generator/number_answer.h"
#include "generator/prompts.h"
#include "generator/text_task.h"

namespace replay {
namespace {

class FileTask final : public TextTask {
 public:
  explicit FileTask(const FileTaskOptions& options) : options_(options) {
    errno = 0;
    std::ifstream file(options_.path);
    if (!file) throw ConfigError("\"" + options_.path + "\" cannot be opened: " + std::strerror(errno));
    std::set<std::string> seen;
    std::string line;
    for (uint64_t number = 1; std::getline(file, line); ++number) {
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      try {
        Add(JsonConfig::Parse(line), &seen);
      } catch (const ConfigError& error) {
        throw ConfigError(options_.path + ":" + std::to_string(number) + ": " + error.what());
      }
    }
    if (file.bad()) throw ConfigError("\"" + options_.path + "\" cannot be read: " + std::strerror(errno));
    if (training_.empty() || held_out_.empty()) throw ConfigError(Summary() + ": at least one of each is needed");
  }

  std::string Summary() const override {
    return "file " + options_.path + ": " + std::to_string(training_.size()) + " questions to train on, " +
           std::to_string(held_out_.size()) + " held out; left out: " + std::to_string(too_long_) + " longer than " +
           std::to_string(options_.max_prompt_tokens) + " tokens or with an answer longer than " +
           std::to_string(options_.max_answer_tokens) + ", " + std::to_string(repeated_) + " repeated";
  }
  uint32_t max_prompt_tokens() const override { return options_.max_prompt_tokens; }
  uint32_t max_answer_tokens() const override { return options_.max_answer_tokens; }

  Prompt NextTrainingPrompt(std::mt19937_64& random) const override {
    return training_[static_cast<size_t>(Below(random, static_cast<int64_t>(training_.size())))];
  }
  std::vector<Prompt> HeldOutPrompts(size_t count) const override {
    return {held_out_.begin(), held_out_.begin() + static_cast<ptrdiff_t>(std::min(count, held_out_.size()))};
  }
  Score ScoreAnswer(const Prompt& prompt, std::span<const int32_t> answer) const override {
    const std::optional<std::string> text = Ended(answer);
    const bool correct = text && SameNumber(FinalNumber(*text), prompt.answer);
    return {correct ? 1.0f : 0.0f, correct};
  }
  std::vector<int32_t> Demonstration(const Prompt& prompt, std::mt19937_64&) const override {
    return AnswerTokens(" #### " + prompt.answer);
  }

 private:
  // `seen` are the questions of the lines before: one that stands twice would be asked twice as often.
  void Add(JsonConfig line, std::set<std::string>* seen) {
    const std::string question = line.Text("question", ""), answer = line.Text("answer", "");
    if (question.empty()) line.Fail("question", "must be a text, and not empty");
    Prompt prompt = MakePrompt("Question: " + question + "\nAnswer:", FinalNumber(answer));
    if (!SameNumber(prompt.answer, prompt.answer))
      line.Fail("answer", "must give a number, behind \"####\", in \\boxed{} or as its last");
    if (!seen->insert(prompt.id).second) {
      ++repeated_;
      return;
    }
    if (prompt.token_ids.size() > options_.max_prompt_tokens ||
        AnswerTokens(" #### " + prompt.answer).size() > options_.max_answer_tokens) {
      ++too_long_;
      return;
    }
    const bool held_out = IsHeldOut(prompt.id);
    prompt.id = (held_out ? "h" : "t") + std::to_string(HashOf(prompt.id));  // short: it goes along with each trajectory
    (held_out ? held_out_ : training_).push_back(std::move(prompt));
  }

  const FileTaskOptions options_;
  std::vector<Prompt> training_, held_out_;  // in order of the file
  uint64_t too_long_ = 0, repeated_ = 0;
};

}  // namespace

std::unique_ptr<Task> MakeFileTask(const FileTaskOptions& options) { return std::make_unique<FileTask>(options); }

}  // namespace replay
