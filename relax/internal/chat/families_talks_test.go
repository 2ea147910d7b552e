package chat

import "github.com/relax-rollout/relax-rollout/relax/internal/canon"

// weatherJSON is the tool as most templates print it.
const weatherJSON = `{"type": "function", "function": {"name": "weather", "description": "Current weather", ` +
	`"parameters": {"type": "object", "properties": {"city": {"type": "string", "description": "a city"}}, "required": ["city"]}}}`

const mistralTools = "[AVAILABLE_TOOLS][" + weatherJSON + "][/AVAILABLE_TOOLS]"

// cohereInstruction is what Command-R+ says before each answer.
const cohereInstruction = "<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>Write 'Action:' …\n]```<|END_OF_TURN_TOKEN|>"

// familyTalks were taken from renders and compared with the templates' text, piece by
// piece. "…" stands for a head that says nothing of the conversation.
var familyTalks = []familyTalk{
	{template: "lc__GLM-4.6", bos: "", eos: []string{"<|endoftext|>", "<|user|>", "<|observation|>"}, turns: paris("Look it up."),
		tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"[gMASK]<sop><|system|>…<tools>\n" + weatherJSON + "\n</tools>…\n</tool_call><|user|>\nWeather in Paris?", "<|assistant|>", "\n<think>Look it up.</think>\n<tool_call>weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call><|observation|>"},
			{"\n<tool_response>\n18 C\n</tool_response>", "<|assistant|>", "\n<think></think>\n18 degrees.<|user|>"},
			{"\nThanks!", "<|assistant|>", ""},
		}},
	{template: "npm__deepseek_v3", bos: "<｜begin▁of▁sentence｜>", eos: []string{"<｜end▁of▁sentence｜>"}, turns: paris(""), tools: nil,
		want: []turnText{
			{"<｜begin▁of▁sentence｜><｜User｜>Weather in Paris?", "<｜Assistant｜>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>weather\n```json\n{\"city\": \"Paris\"}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"},
			{"<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>18 C<｜tool▁output▁end｜><｜tool▁outputs▁end｜>", "", "18 degrees.<｜end▁of▁sentence｜>"},
			{"<｜User｜>Thanks!", "<｜Assistant｜>", ""},
		}},
	{template: "lc__deepseek-ai-DeepSeek-V3.1", bos: "<｜begin▁of▁sentence｜>", eos: []string{"<｜end▁of▁sentence｜>"}, turns: paris(""), tools: nil,
		want: []turnText{
			{"<｜begin▁of▁sentence｜><｜User｜>Weather in Paris?", "<｜Assistant｜><think></think>", "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{\"city\": \"Paris\"}<｜tool▁call▁end｜><｜tool▁calls▁end｜><｜end▁of▁sentence｜>"},
			{"<｜tool▁output▁begin｜>18 C<｜tool▁output▁end｜>", "", "18 degrees.<｜end▁of▁sentence｜>"},
			{"<｜User｜>Thanks!", "<｜Assistant｜><think></think>", ""},
		}},
	{template: "lc__openai-gpt-oss-120b", bos: "<|startoftext|>", eos: []string{"<|return|>", "<|endoftext|>", "<|call|>"}, turns: paris("Look it up."), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"<|start|>system<|message|>…Reasoning: medium…<|end|><|start|>developer<|message|># Tools\n\n## functions\n\nnamespace functions {\n\n// Current weather\ntype weather = (_: {\n// a city\ncity: string,\n}) => any;\n\n} // namespace functions<|end|><|start|>user<|message|>Weather in Paris?<|end|>", "<|start|>assistant", "<|channel|>analysis<|message|>Look it up.<|end|><|start|>assistant to=functions.weather<|channel|>commentary json<|message|>{\"city\": \"Paris\"}<|call|>"},
			{"<|start|>functions.weather to=assistant<|channel|>commentary<|message|>\"18 C\"<|end|>", "<|start|>assistant", "<|channel|>final<|message|>18 degrees.<|return|>"},
			{"<|start|>user<|message|>Thanks!<|end|>", "<|start|>assistant", ""},
		}},
	{template: "lc__meta-llama-Llama-3.1-8B-Instruct", bos: "<|begin_of_text|>", eos: []string{"<|eot_id|>"}, turns: paris(""), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nEnvironment: ipython\n…Today Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\n…{\n    \"type\": \"function\",\n    \"function\": {\n        \"name\": \"weather\",\n        \"description\": \"Current weather\",\n        \"parameters\": {\n            \"type\": \"object\",\n            \"properties\": {\n                \"city\": {\n                    \"type\": \"string\",\n                    \"description\": \"a city\"\n                }\n            },\n            \"required\": [\n                \"city\"\n            ]\n        }\n    }\n}\n\nWeather in Paris?<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", "{\"name\": \"weather\", \"parameters\": {\"city\": \"Paris\"}}<|eot_id|>"},
			{"<|start_header_id|>ipython<|end_header_id|>\n\n\"18 C\"<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", "18 degrees.<|eot_id|>"},
			{"<|start_header_id|>user<|end_header_id|>\n\nThanks!<|eot_id|>", "<|start_header_id|>assistant<|end_header_id|>\n\n", ""},
		}},
	{template: "lc__google-gemma-4-31B-it", bos: "<bos>", eos: []string{"<eos>", "<turn|>", "<|tool_response>"}, turns: paris(""), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"<bos><|turn>system\n<|tool>declaration:weather{description:<|\"|>Current weather<|\"|>,parameters:{properties:{city:{description:<|\"|>a city<|\"|>,type:<|\"|>STRING<|\"|>}},required:[<|\"|>city<|\"|>],type:<|\"|>OBJECT<|\"|>}}<tool|><turn|>\n<|turn>user\nWeather in Paris?<turn|>\n", "<|turn>model\n<|channel>thought\n<channel|>", "<|tool_call>call:weather{city:<|\"|>Paris<|\"|>}<tool_call|><|tool_response>"},
			{"response:weather{value:<|\"|>18 C<|\"|>}<tool_response|>", "", "18 degrees.<turn|>"},
			{"\n<|turn>user\nThanks!<turn|>\n", "<|turn>model\n<|channel>thought\n<channel|>", ""},
		}},
	{template: "lc__CohereForAI-c4ai-command-r-plus-tool_use", bos: "<BOS_TOKEN>", eos: []string{"<|END_OF_TURN_TOKEN|>"}, turns: paris(""), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"<BOS_TOKEN><|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>…```python\ndef weather(city: str) -> List[Dict]:\n    \"\"\"Current weather\n\n    Args:\n        city (str): a city\n    \"\"\"\n    pass\n```<|END_OF_TURN_TOKEN|><|START_OF_TURN_TOKEN|><|USER_TOKEN|>Weather in Paris?<|END_OF_TURN_TOKEN|>" + cohereInstruction, "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "Action:\n```json\n[\n    {\n        \"tool_name\": \"weather\",\n        \"parameters\": {\n            \"city\": \"Paris\"\n        }\n    }\n]```<|END_OF_TURN_TOKEN|>"},
			{"<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|><results>\n18 C</results><|END_OF_TURN_TOKEN|>" + cohereInstruction, "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "18 degrees.<|END_OF_TURN_TOKEN|>"},
			{"<|START_OF_TURN_TOKEN|><|USER_TOKEN|>Thanks!<|END_OF_TURN_TOKEN|>" + cohereInstruction, "<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", ""},
		}},
	{template: "lc__moonshotai-Kimi-K2", bos: "[BOS]", eos: []string{"[EOS]", "<|im_end|>"}, turns: paris(""), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"<|im_system|>tool_declare<|im_middle|>[" + weatherJSON + "]<|im_end|><|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|><|im_user|>user<|im_middle|>Weather in Paris?<|im_end|>", "<|im_assistant|>assistant<|im_middle|>", "<|tool_calls_section_begin|><|tool_call_begin|>call_0123456789abcdef01234567<|tool_call_argument_begin|>{\"city\": \"Paris\"}<|tool_call_end|><|tool_calls_section_end|><|im_end|>"},
			{"<|im_system|>tool<|im_middle|>## Return of call_0123456789abcdef01234567\\n18 C<|im_end|>", "<|im_assistant|>assistant<|im_middle|>", "18 degrees.<|im_end|>"},
			{"<|im_user|>user<|im_middle|>Thanks!<|im_end|>", "<|im_assistant|>assistant<|im_middle|>", ""},
		}},
	{template: "miles__minimax_m25_fixed", bos: "]~!b[", eos: []string{"[e~["}, turns: paris("Look it up."), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"]~!b[]~b]system\n…<tools>\n<tool>{\"name\": \"weather\", \"description\": \"Current weather\", \"parameters\": {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"description\": \"a city\"}}, \"required\": [\"city\"]}}</tool>\n</tools>…[e~[\n]~b]user\nWeather in Paris?[e~[\n", "]~b]ai\n<think>\n", "Look it up.\n</think>\n\n<minimax:tool_call>\n<invoke name=\"weather\">\n<parameter name=\"city\">Paris</parameter>\n</invoke>\n</minimax:tool_call>[e~["},
			{"\n]~b]tool\n<response>18 C</response>[e~[\n", "]~b]ai\n<think>\n", "\n</think>\n\n18 degrees.[e~["},
			{"\n]~b]user\nThanks![e~[\n", "]~b]ai\n<think>\n", ""},
		}},
	{template: "lc__Mistral-Small-3.2-24B-Instruct-2506", bos: "<s>", eos: []string{"</s>"}, turns: append([]*canon.Message{system("Be brief.")}, paris("")...), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"<s>[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]" + mistralTools + "[INST]Weather in Paris?[/INST]", "", "[TOOL_CALLS]weather[CALL_ID]abcdefghi[ARGS]{\"city\": \"Paris\"}</s>"},
			{"[TOOL_RESULTS]L0AwoDwcY[TOOL_CONTENT]18 C[/TOOL_RESULTS]", "", "18 degrees.</s>"},
			{mistralTools + "[INST]Thanks![/INST]", "", ""},
		}},
	{template: "lc__Qwen-Qwen3-0.6B", bos: "", eos: []string{"<|im_end|>", "<|endoftext|>"}, turns: paris("Look it up."), tools: []canon.ToolSpec{weather},
		want: []turnText{
			{"<|im_start|>system\n# …<tools>\n" + weatherJSON + "\n</tools>…</tool_call><|im_end|>\n<|im_start|>user\nWeather in Paris?<|im_end|>\n", "<|im_start|>assistant\n", "<think>\nLook it up.\n</think>\n\n<tool_call>\n{\"name\": \"weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call><|im_end|>"},
			{"\n<|im_start|>user\n<tool_response>\n18 C\n</tool_response><|im_end|>\n", "<|im_start|>assistant\n", "<think>\n\n</think>\n\n18 degrees.<|im_end|>"},
			{"\n<|im_start|>user\nThanks!<|im_end|>\n", "<|im_start|>assistant\n", ""},
		}},
}
