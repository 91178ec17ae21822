#include <unistd.h>

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <set>

#include "generator/number_answer.h"
#include "generator/task.h"

namespace replay {
namespace {

// A file that is gone with the object.
class File {
 public:
  explicit File(const std::string& content)
      : path_(testing::TempDir() + "file_task_test_" + std::to_string(::getpid()) + ".jsonl") {
    std::ofstream(path_, std::ios::binary) << content;
  }
  ~File() { std::filesystem::remove(path_); }
  const std::string& path() const { return path_; }

 private:
  const std::string path_;
};

std::unique_ptr<Task> Make(const std::string& path, const std::string& more = "") {
  const std::string json = nlohmann::json{{"kind", "file"}, {"path", path}}.dump();
  JsonConfig config = JsonConfig::Parse("{\"task\": " + json.substr(0, json.size() - 1) + more + "}}").Object("task");
  return MakeTask(config);
}

std::string ErrorOf(const std::string& path, const std::string& more = "") {
  try {
    Make(path, more);
    return "none";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

std::string ErrorOfContent(const std::string& content) {
  const File file(content);
  std::string error = ErrorOf(file.path());
  for (size_t at; (at = error.find(file.path())) != std::string::npos;) error.replace(at, file.path().size(), "FILE");
  return error;
}

std::string Line(const std::string& question, const std::string& answer) {
  return nlohmann::json{{"question", question}, {"answer", answer}}.dump() + "\n";
}
// Enough for both sides.
std::string ManyLines() {
  std::string lines;
  for (int i = 0; i < 64; ++i) lines += Line("What is " + std::to_string(i) + " and 1?", "#### " + std::to_string(i + 1));
  return lines;
}

std::vector<int32_t> Answer(std::string_view text) {
  std::vector<int32_t> tokens;
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  tokens.push_back(256);
  return tokens;
}

// Every prompt of the task by its text.
std::map<std::string, Prompt> AllPrompts(const Task& task) {
  std::map<std::string, Prompt> prompts;
  std::mt19937_64 random(1);
  for (const Prompt& prompt : task.HeldOutPrompts(1000)) prompts[task.Text(prompt.token_ids)] = prompt;
  for (int i = 0; i < 20'000; ++i) {
    const Prompt prompt = task.NextTrainingPrompt(random);
    prompts[task.Text(prompt.token_ids)] = prompt;
  }
  return prompts;
}

TEST(FileTask, AsksEveryQuestionOfItsFile) {
  const auto task = Make(REPLAY_TEST_DATA "/questions.jsonl");
  const auto prompts = AllPrompts(*task);
  EXPECT_EQ(67u, prompts.size());
  EXPECT_EQ(3u, task->HeldOutPrompts(1000).size());
  const auto answer = [&](const std::string& question) { return prompts.at("Question: " + question + "\nAnswer:").answer; };
  EXPECT_EQ("86400", answer("How many seconds has a day?"));
  EXPECT_EQ("-8", answer("Ben owes 20 euros and pays back 12. What does his account show?"));
  EXPECT_EQ("1.50", answer("Six pens cost $9. What does one pen cost?"));
  EXPECT_EQ("2/6", answer("A die is thrown once. How likely is a number above 4?"));
  EXPECT_EQ("45", answer("Zoë has 60 stickers, gives away a third and then gets 5. How many has she at the end?"));
  EXPECT_EQ("70", answer("A team won 14 of 20 games. How many percent is that?"));
  std::set<std::string> ids;
  for (const auto& [text, prompt] : prompts) ids.insert(prompt.id);
  EXPECT_EQ(67u, ids.size());
  EXPECT_EQ("file " REPLAY_TEST_DATA
            "/questions.jsonl: 64 questions to train on, 3 held out; left out: 0 longer than 512 tokens or "
            "with an answer longer than 64, 0 repeated",
            task->Summary());
}

TEST(FileTask, TakesTheSameNumberHoweverItIsWritten) {
  const auto task = Make(REPLAY_TEST_DATA "/questions.jsonl");
  const auto prompts = AllPrompts(*task);
  const Prompt& day = prompts.at("Question: How many seconds has a day?\nAnswer:");
  const auto correct = [&](std::string_view answer) { return task->ScoreAnswer(day, Answer(answer)).correct; };
  EXPECT_TRUE(correct(" #### 86400"));
  EXPECT_TRUE(correct("24*60*60 is 86,400."));
  EXPECT_TRUE(correct("\\boxed{86400.0} and not 5"));
  EXPECT_TRUE(correct("86400"));
  EXPECT_FALSE(correct("86400 or 86401"));
  EXPECT_FALSE(correct("-86400"));
  EXPECT_FALSE(correct("8640"));
  EXPECT_FALSE(correct("86400 ####"));
  EXPECT_FALSE(correct("I do not know"));
  EXPECT_FALSE(correct(""));
  const Prompt& die = prompts.at("Question: A die is thrown once. How likely is a number above 4?\nAnswer:");
  EXPECT_TRUE(task->ScoreAnswer(die, Answer("\\boxed{\\frac{1}{3}}")).correct);
  EXPECT_FALSE(task->ScoreAnswer(die, Answer("0.33")).correct);
}

TEST(FileTask, PassesOverBlankLinesOtherKeysAndRepeats) {
  const std::string repeated = Line("What is 3 and 1?", "#### 9") + "\n  \t\r\n";
  const File file(ManyLines() + repeated + R"({"id": [1, {"a": null}], "question": "More?", "answer": "#### 5"})" + "\r\n" +
                  repeated + Line("No line end?", "#### 6").substr(0, Line("No line end?", "#### 6").size() - 1));
  const auto task = Make(file.path());
  const auto prompts = AllPrompts(*task);
  EXPECT_EQ(66u, prompts.size());
  EXPECT_EQ("4", prompts.at("Question: What is 3 and 1?\nAnswer:").answer);  // the first
  EXPECT_EQ("5", prompts.at("Question: More?\nAnswer:").answer);
  EXPECT_EQ("6", prompts.at("Question: No line end?\nAnswer:").answer);
  EXPECT_NE(std::string::npos, task->Summary().find("2 repeated")) << task->Summary();
}

TEST(FileTask, LeavesOutAndCountsWhatIsTooLong) {
  const std::string fits(100 - std::string("Question: \nAnswer:").size(), 'x');
  const File file(ManyLines() + Line(fits, "#### 1") + Line(fits + "x", "#### 1") + Line("Long answer?", "#### 12345678901") +
                  Line("Just right?", "#### 1234567890"));
  const auto task = Make(file.path(), R"(, "max_prompt_tokens": 100, "max_answer_tokens": 17)");
  const auto prompts = AllPrompts(*task);
  EXPECT_EQ(66u, prompts.size());
  EXPECT_TRUE(prompts.contains("Question: " + fits + "\nAnswer:"));
  EXPECT_TRUE(prompts.contains("Question: Just right?\nAnswer:"));
  EXPECT_EQ(100u, task->max_prompt_tokens());
  EXPECT_EQ(17u, task->max_answer_tokens());
  EXPECT_NE(std::string::npos, task->Summary().find("left out: 2 longer than 100 tokens")) << task->Summary();
  EXPECT_NE(std::string::npos,
            ErrorOf(file.path(), R"(, "max_prompt_tokens": 10)").find(": 0 questions to train on, 0 held out"));
}

TEST(FileTask, SaysWhatIsWrongWithItsConfiguration) {
  EXPECT_EQ("task.path: \"/no/such.jsonl\" cannot be opened: No such file or directory", ErrorOf("/no/such.jsonl"));
  EXPECT_EQ("task.path is \"\": must name a file of JSON Lines", ErrorOf(""));
  EXPECT_EQ("task.path: \"" REPLAY_TEST_DATA "\" cannot be read: Is a directory", ErrorOf(REPLAY_TEST_DATA));
  EXPECT_EQ("task.max_prompt_tokens is 0: must be from 1 to 1048576", ErrorOf("x", R"(, "max_prompt_tokens": 0)"));
  EXPECT_EQ("task.max_answer_tokens is \"64\": must be a whole number", ErrorOf("x", R"(, "max_answer_tokens": "64")"));
  EXPECT_EQ("unknown key task.max_prompt_token: did you mean \"max_prompt_tokens\"?",
            ErrorOf("x", R"(, "max_prompt_token": 4)"));
  JsonConfig pathless = JsonConfig::Parse(R"({"kind": "file"})");
  try {
    MakeTask(pathless);
    ADD_FAILURE() << "no error";
  } catch (const ConfigError& error) {
    EXPECT_STREQ("path is absent: must name a file of JSON Lines", error.what());
  }
}

TEST(FileTask, SaysWhatIsWrongWithItsFile) {
  const std::string good = Line("What is 1 and 1?", "#### 2");
  EXPECT_EQ("task.path: FILE:3: question is absent: must be a text, and not empty", ErrorOfContent(good + "\n{}\n" + good));
  EXPECT_EQ("task.path: FILE:2: question is \"\": must be a text, and not empty", ErrorOfContent(good + Line("", "#### 2")));
  EXPECT_EQ("task.path: FILE:1: question is 5: must be a string", ErrorOfContent(R"({"question": 5, "answer": "5"})"));
  EXPECT_EQ("task.path: FILE:1: answer is 5: must be a string", ErrorOfContent(R"({"question": "a", "answer": 5})"));
  const std::string rule = ": must give a number, behind \"####\", in \\boxed{} or as its last";
  EXPECT_EQ("task.path: FILE:1: answer is absent" + rule, ErrorOfContent(R"({"question": "a"})"));
  EXPECT_EQ("task.path: FILE:1: answer is \"none\"" + rule, ErrorOfContent(Line("a", "none")));
  EXPECT_EQ("task.path: FILE:1: answer is \"#### 1/0\"" + rule, ErrorOfContent(Line("a", "#### 1/0")));
  EXPECT_EQ("task.path: FILE:1: the configuration is not a JSON object", ErrorOfContent("[1]\n"));
  EXPECT_EQ("task.path: FILE:2: not valid JSON: ", ErrorOfContent(good + "{\"question\": \n").substr(0, 35));
  EXPECT_EQ("task.path: FILE:1: not valid JSON: ", ErrorOfContent("{\"question\": \"\xff\", \"answer\": \"1\"}").substr(0, 35));
  EXPECT_EQ("task.path: FILE:1: key \"answer\" stands twice in one object",
            ErrorOfContent(R"({"question": "a", "answer": "1", "answer": "2"})"));
  EXPECT_EQ("task.path: FILE:1: nested more than 32 deep", ErrorOfContent("{\"question\": " + std::string(100'000, '[')));
  for (const std::string& empty : {std::string(), std::string("\n\n"), good}) {
    const std::string error = ErrorOfContent(empty);
    EXPECT_NE(std::string::npos, error.find(": at least one of each is needed")) << error;
  }
}

}  // namespace
}  // namespace replay
