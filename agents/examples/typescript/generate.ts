// The types of the events that agents write, from headrace's AsyncAPI document: `headrace asyncapi --write FILE`, then
// `node generate.ts FILE > payloads.ts`. Types only grow, so an older payloads.ts stays right.
import { readFileSync } from "node:fs";
import { compile, type JSONSchema } from "json-schema-to-typescript";

const { channels, components } = JSON.parse(readFileSync(process.argv[2] ?? "asyncapi.json", "utf8"));
const properties: Record<string, JSONSchema> = {};
for (const channel of [channels.events, channels.feedback]) {
  for (const type of Object.keys(channel.messages)) {
    if (type !== "headrace.clock.ticked.v1") properties[type] = components.messages[type].payload; // of processors
  }
}

/** Leaves out what would become a type of its own: titles of fields, and descriptions beside references. */
function plain(schema: JSONSchema): JSONSchema {
  const fields = Object.entries<JSONSchema>(schema.properties ?? {}).map(([name, { title: _, ...field }]) => {
    if (field.$ref) return [name, { $ref: field.$ref }];
    const isAnyJson = !["type", "anyOf", "enum", "const"].some((key) => key in field);
    return [name, isAnyJson ? { ...field, tsType: "unknown" } : field];
  });
  return fields.length ? { ...schema, properties: Object.fromEntries(fields) } : schema;
}

const schemas = Object.entries<JSONSchema>(components.schemas).map(([name, schema]) => [name, plain(schema)]);
const payloads: JSONSchema = {
  description: "Payloads of the events that agents write, by type.",
  type: "object",
  properties,
  required: Object.keys(properties),
  additionalProperties: false,
  components: { schemas: Object.fromEntries(schemas) },
};
const text = await compile(payloads, "Payloads", {
  bannerComment: "// Made by generate.ts from headrace's AsyncAPI document.",
  ignoreMinAndMaxItems: true,
  style: { printWidth: 120 },
});
process.stdout.write(text.replaceAll("``None``", "null").replaceAll("``", "`"));
