#!/usr/bin/env bash
# An agent in curl and jq. The gateway records it as one trajectory: its calls with exact tokens, its tools, its outcome
# and what a user says about it.
#
#     GATEWAY=http://127.0.0.1:8200 bash session.sh order-17 'Do you have boots in size 44?'
set -euo pipefail
: "${GATEWAY:?set it to the address of the gateway, which headrace up prints}"
task=${1:-order-17}
question=${2:-Do you have boots in size 44?}

post() { # post PATH KEY < BODY: prints the answer; the error's message if there is one, and then fails
    curl --silent --show-error --fail-with-body "$GATEWAY$1" --data-binary @- \
        --header 'Content-Type: application/json' --header "Authorization: Bearer $2"
}

search() { # the agent's tool
    case $(jq -r .size <<<"$1") in 44) echo '["boots", "sandals"]' ;; *) echo '[]' ;; esac
}

tools='[{"type": "function", "function": {"name": "search", "description": "What the shop has in a size.",
    "parameters": {"type": "object", "properties": {"size": {"type": "string"}}, "required": ["size"]}}}]'

ask() { # one model call: sends $messages, and adds the answer to them
    local answer
    answer=$(jq --arg model "$model" --argjson tools "$tools" '{model: $model, tools: $tools, messages: .}' \
        <<<"$messages" | post /v1/chat/completions "$key") || { echo "$answer" >&2; return 1; }
    message=$(jq '.choices[0].message' <<<"$answer")
    add "$message"
}

add() { # adds a message to the conversation
    messages=$(printf '%s\n' "$messages" "$1" | jq --slurp '.[0] + [.[1]]')
}

# Open a session for the task. Its key names it in every call. KEY is the team's own, if the gateway asks for one: with
# it the session is opened and judged.
opened=$(jq --null-input --arg task "$task" '{task_id: $task, agent: "checkout"}' | post /sessions "${KEY:-any}")
session=$(jq -r .session <<<"$opened")
key=$(jq -r .api_key <<<"$opened")
feedback_token=$(jq -r .feedback_token <<<"$opened")

# Whatever happens from here on, the session ends with it.
status=failed outcome=null
trap 'post "/sessions/$session/end" "${KEY:-any}" <<<"{\"status\": \"$status\", \"outcome\": $outcome}" >/dev/null' EXIT

models=$(curl --silent --show-error --fail-with-body "$GATEWAY/v1/models" --header "Authorization: Bearer $key")
model=$(jq -r '.data[0].id' <<<"$models")
messages=$(jq --null-input --arg question "$question" '[{role: "user", content: $question}]')
ask
while jq --exit-status '.tool_calls | length > 0' <<<"$message" >/dev/null; do
    while read -r call; do
        result=$(search "$(jq -r .function.arguments <<<"$call")")
        add "$(jq --arg result "$result" '{role: "tool", tool_call_id: .id, content: $result}' <<<"$call")"
    done < <(jq --compact-output '.tool_calls[]' <<<"$message")
    ask
done
jq -r .content <<<"$message"
status=completed outcome=1

# What the user says, later and from anywhere: the token permits this, and nothing else.
post "/feedback/$feedback_token" '' <<<'{"signal": "accepted", "value": 1}' >/dev/null
