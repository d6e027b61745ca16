// The schema's types as JSON has them: an enum of texts is any of its texts.
import type { Dashboard } from "@grafana/schema";

type Loose<T> = T extends string ? `${T}` : T extends readonly (infer U)[] ? Loose<U>[] : T extends object ? { [K in keyof T]: Loose<T[K]> } : T;
