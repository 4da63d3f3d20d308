"""A sound becomes requests, a piece of at most half a minute each, and what they say becomes the answer."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import Response

from jaxengine.contract.arrays import Floats
from jaxengine.contract.media import Modality
from jaxengine.contract.outputs import CompletionOutput
from jaxengine.contract.request import Request as EngineRequest
from jaxengine.contract.rows import Align
from jaxengine.contract.sampling_params import RequestOutputKind, SamplingParams
from jaxengine.errors import OverloadedError, RequestError, UnsupportedError
from jaxengine.front.instructed_speech import InstructedSpeech
from jaxengine.front.output_stream import OutputStream
from jaxengine.front.pooled import data_of
from jaxengine.front.prompts import ParsedPrompt
from jaxengine.front.speech import SAMPLES_OF_PLACE, SpeechTokens
from jaxengine.front.words import Word, token_times, words_of
from jaxengine.media.errors import MediaError
from jaxengine.media.items import Shown
from jaxengine.media.mel import RATE
from jaxengine.media.quiet import cut_where_quiet
from jaxengine.media.sound import decode_sound
from jaxengine.options.option import MIB
from jaxengine.server.endpoints.audio.ended import check_made, check_pooled
from jaxengine.server.endpoints.audio.joined import Joining, between, joined
from jaxengine.server.endpoints.audio.protocol import (
    DurationUsage,
    Segment,
    SpeechRequest,
    Text,
    TimedWord,
    VerboseText,
)
from jaxengine.server.endpoints.audio.segments import Spoken, segments_of, srt, vtt
from jaxengine.server.generation.protocol import PAUSED
from jaxengine.server.generation.requests import check_label
from jaxengine.server.http.stream import event, json_response
from jaxengine.server.http.terms import Terms
from jaxengine.server.http.unknown import check_unknown
from jaxengine.server.service import Service
from jaxengine.server.telemetry.tracing import Origin
from jaxengine.text.tokenizer import require_tokenizer

WITH_TIMES = ("verbose_json", "srt", "vtt")
SAMPLED = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "seed",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
)


SILENT = SamplingParams(
    temperature=0.0,
    max_tokens=1,
    prompt_logprobs=0,
    output_kind=RequestOutputKind.FINAL_ONLY,
    detokenize=False,
)
"""Of a prompt that is only asked how likely its last id is."""


class SpeechAnswer:
    """One file, and what was asked about it; `task` is `transcribe` or `translate`."""

    def __init__(
        self, body: SpeechRequest, content: bytes, task: str, service: Service, origin: Origin, terms: Terms
    ) -> None:
        self._body, self._content, self._task = body, content, task
        self._service, self._origin, self._terms = service, origin, terms
        self._times = body.response_format in WITH_TIMES
        self._pieces: Sequence[tuple[int, int]] = ()
        self._seconds = 0.0
        self._language = body.language
        self._words = "word" in body.timestamp_granularities
        self._prompts: list[ParsedPrompt] = []
        self._order: dict[str, int] = {}
        self._silent: dict[str, int] = {}

    async def begin(self) -> OutputStream[Any]:
        """Check the body, decode and cut the sound, find its language if none was named, and hand all to the engine.

        Raises:
            RequestError: the body asks for something that cannot be, or the file is none.
        """
        service = self._service
        self._check()
        self._speech = self._tokens()
        try:
            sound = await service.in_thread(lambda: decode_sound(self._content, rate=RATE))
        except MediaError as error:
            raise RequestError(f"Invalid or unsupported audio file: {error}", param="file") from error
        if not len(sound.samples):
            raise RequestError("the file has no sound in it", param="file")
        self._seconds = sound.seconds
        most = self._speech.most_samples(service.front.intake.facts.max_model_len)
        self._pieces = cut_where_quiet(sound.samples, RATE, most)
        shown = [Shown(Modality.AUDIO, (sound.samples[first:end], RATE)) for first, end in self._pieces]
        if self._language is None and self._speech.languages:
            self._language = await self._heard(shown[0])
        tokenizer = require_tokenizer(service.tokenizer, "a transcription")
        previous = (
            tokenizer.encode(" " + self._body.prompt.strip(), add_special_tokens=False)
            if self._body.prompt.strip()
            else []
        )
        params = self._params()
        requests = []
        for number, item in enumerate(shown):
            ids = self._speech.prompt(
                self._language, self._task, times=self._times, previous=previous if number == 0 else ()
            )
            prompt = ParsedPrompt(token_ids=ids, shown=(item,), speech=self._speech.rules(times=self._times))
            self._prompts.append(prompt)
            requests.append(await self._request(prompt, params))
            self._order[requests[-1].request_id] = number
            verbose = self._body.response_format == "verbose_json"
            if verbose and isinstance(self._speech, SpeechTokens) and self._speech.silence is not None:
                ids = self._speech.silent(previous if number == 0 else ())
                requests.append(await self._request(ParsedPrompt(token_ids=ids, shown=(item,)), SILENT))
                self._silent[requests[-1].request_id] = number
        return await service.submit(requests, self._origin, self._terms)

    async def whole(self) -> Response:
        """The answer in the format that was asked for."""
        outputs: dict[int, CompletionOutput] = {}
        silence: dict[int, float] = {}
        timing: dict[int, asyncio.Task[list[Word]]] = {}
        try:
            with await self.begin() as stream:
                async for several in stream:
                    for output in several:
                        [made] = output.outputs
                        check_made(made, "a piece could not be transcribed")
                        if (silent := self._silent.get(output.request_id)) is None:
                            number = self._order[output.request_id]
                            outputs[number] = made
                            if self._words:
                                timing[number] = asyncio.create_task(self._timed(number, made.token_ids))
                        else:
                            silence[silent] = math.exp(output.prompt_logprobs[-1][self._speech.silence].logprob)
            await asyncio.gather(*timing.values())
        finally:
            for task in timing.values():
                task.cancel()
        words = [word for number in sorted(timing) for word in timing[number].result()]
        return self._written([outputs[number] for number in range(len(self._pieces))], silence, words)

    async def _timed(self, number: int, ids: Sequence[int]) -> list[Word]:
        """The words of a piece: its text is computed once more, for what it attends to in the sound, which is still there."""
        service, speech, (first, end) = self._service, self._speech, self._pieces[number]
        assert isinstance(speech, SpeechTokens)
        text = tuple(token for token in ids if token != speech.end)
        if not text:
            return []
        prompt = self._prompts[number]
        before = prompt.token_ids or ()
        align = Align(first=len(before), frames=max(1, (end - first) // SAMPLES_OF_PLACE))
        shown = replace(prompt, token_ids=(*before, *text), speech=None)
        request = await service.in_thread(
            lambda: service.intake.aligned(
                shown, align, request_id=service.engine_id(), priority=self._body.priority or 0
            )
        )
        tokenizer = require_tokenizer(service.tokenizer, "a transcription")

        def words(picture: Floats) -> list[Word]:
            return words_of(
                text,
                token_times(picture),
                lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
                first_time=speech.first_time,
                language=self._written_in,
                begin=first / RATE,
            )

        with await service.submit([request], self._origin, self._terms) as stream:
            async for [output] in stream:
                check_pooled(output, "the words of a piece could not be timed")
                return await service.in_thread(partial(words, data_of(output)))
        raise OverloadedError(PAUSED)

    async def events(self, stream: OutputStream[Any]) -> AsyncIterator[bytes]:
        """Chunks of the text in its order, as vLLM names them, up to the end or to a piece that was aborted or failed."""
        kind = "transcription" if self._task == "transcribe" else "translation"
        head = {
            "id": self._service.response_id("trsc" if kind == "transcription" else "trsl", self._body.request_id),
            "object": f"{kind}.chunk",
            "created": int(time.time()),
            "model": self._service.answered_by(self._body.model),
        }
        waiting: dict[int, list[CompletionOutput]] = {number: [] for number in range(len(self._pieces))}
        usage, told, count, lost = self._usage(), 0, 0, False
        joining = Joining(self._between)
        with stream:
            async for several in stream:
                for output in several:
                    waiting[self._order[output.request_id]].append(output.outputs[0])
                while told in waiting:
                    parts, waiting[told] = waiting[told], []
                    for part in parts:
                        count += len(part.token_ids)
                        text = joining.take(part.text)
                        choice: dict[str, Any]
                        choice = {"delta": {"content": text}, "finish_reason": None, "stop_reason": None}
                        lost = part.finish_reason in ("abort", "error")
                        last = lost or (part.finished and told == len(self._pieces) - 1)
                        if last:
                            choice |= {"finish_reason": part.finish_reason, "stop_reason": part.stop_reason}
                        chunk: dict[str, Any] = {**head, "choices": [choice]}
                        if self._body.stream_include_usage and self._body.stream_continuous_usage_stats:
                            chunk["usage"] = self._counted(count)
                        if text or last:
                            yield event(chunk)
                    if not parts or not parts[-1].finished or lost:
                        break
                    told += 1
                    joining.end()
                if lost:  # what is behind the hole need not be computed
                    break
        if self._body.stream_include_usage:
            yield event({**head, "choices": [], "usage": {**self._counted(count), **usage}})

    def _counted(self, count: int) -> dict[str, int]:
        prompt = sum(len(self._speech.prompt(self._language, self._task, times=self._times)) for _ in self._pieces)
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + count}

    def _check(self) -> None:
        body = self._body
        self._service.check_model(body.model)
        check_unknown(body.model_extra)
        check_label(body.request_id)
        if body.timestamp_granularities and body.response_format != "verbose_json":
            raise RequestError.of("timestamp_granularities", "needs response_format=verbose_json")
        media = self._service.front.intake.facts.media
        if self._words and not (media is not None and media.aligns):
            raise UnsupportedError(
                "timestamp_granularities: this model has no alignment_heads (in its generation_config.json), by which words are "
                "timed; ask for 'segment', or start it with --hf-overrides '{\"alignment_heads\": [[layer, head], ...]}'",
                param="timestamp_granularities",
            )
        if body.stream and body.response_format != "json":
            raise RequestError.of("stream", "needs response_format=json: other formats are of the whole text")
        if (body.stream_include_usage or body.stream_continuous_usage_stats) and not body.stream:
            raise RequestError("Stream options can only be defined when `stream=True`.", param="stream_include_usage")
        most = self._service.options.limits.max_audio_clip_filesize_mb
        if most and len(self._content) > most * MIB:
            raise RequestError(
                f"Maximum file size exceeded: the file has {len(self._content) / MIB:.1f} MiB, and this server takes {most:g} "
                "(--max-audio-clip-filesize-mb)",
                param="file",
            )
        if body.to_language not in (None, "en"):
            raise RequestError.of(
                "to_language", f"must be en, the language that is translated to, got {body.to_language[:20]!r}"
            )

    def _tokens(self) -> SpeechTokens | InstructedSpeech:
        speech = self._service.front.speech
        if speech is None or self._service.front.intake.showing is None:
            raise UnsupportedError(
                "The model does not support Transcriptions API: serve a Whisper or Voxtral", param="model"
            )
        return speech

    def _params(self) -> SamplingParams:
        body = self._body
        most = body.max_completion_tokens
        given = {name: value for name in SAMPLED if (value := getattr(body, name)) is not None}
        return SamplingParams(
            **given,
            max_tokens=None if most is None else min(most, self._service.front.intake.facts.max_model_len),
            logprobs=0 if self._times else None,
            output_kind=RequestOutputKind.DELTA if body.stream else RequestOutputKind.FINAL_ONLY,
            skip_special_tokens=True,
        )

    async def _request(self, prompt: ParsedPrompt, params: SamplingParams) -> EngineRequest:
        service = self._service

        def make() -> EngineRequest:
            return service.intake.request(
                prompt, params, request_id=service.engine_id(), priority=self._body.priority or 0
            )

        return await service.in_thread(make)

    async def _heard(self, first: Shown) -> str:
        """The language of the first piece: the likeliest of all that the model knows."""
        codes = {number: code for code, number in self._speech.languages.items()}
        assert isinstance(self._speech, SpeechTokens)
        params = SamplingParams(
            temperature=0.0,
            max_tokens=1,
            allowed_token_ids=sorted(codes),
            output_kind=RequestOutputKind.FINAL_ONLY,
            detokenize=False,
        )
        request = await self._request(ParsedPrompt(token_ids=(self._speech.start,), shown=(first,)), params)
        with await self._service.submit([request], self._origin, self._terms) as stream:
            async for [output] in stream:
                [made] = output.outputs
                check_made(made, "the language of the sound could not be told")
                return codes[made.token_ids[0]]
        raise OverloadedError(PAUSED)

    @property
    def _between(self) -> str:
        return between(self._written_in)

    @property
    def _written_in(self) -> str | None:
        """The language of the text."""
        return "en" if self._task == "translate" else self._language

    def _written(
        self, outputs: Sequence[CompletionOutput], silence: Mapping[int, float], words: Sequence[Word]
    ) -> Response:
        form = self._body.response_format
        if form in ("json", "text"):
            text = joined((output.text for output in outputs), self._between)
            if form == "text":
                return Response(text, media_type="text/plain; charset=utf-8")
            brief: Text = {"text": text, "usage": self._usage()}
            return json_response(brief)
        segments = self._segments(outputs, silence)
        if form == "srt":
            return Response(srt(segments), media_type="application/x-subrip; charset=utf-8")
        if form == "vtt":
            return Response(vtt(segments), media_type="text/vtt; charset=utf-8")
        told = [self._told(number, one) for number, one in enumerate(segments)] if self._tells_segments else None
        timed: list[TimedWord] = [{"word": one.text, "start": one.begin, "end": one.end} for one in words]
        verbose: VerboseText = {
            "task": self._task,
            "duration": self._seconds,
            "language": self._language or "en",
            "text": joined((one.text for one in segments), self._between),
            "segments": told,
            "words": timed if self._words else None,
            "usage": self._usage(),
        }
        return json_response(verbose)

    @property
    def _tells_segments(self) -> bool:
        """Unless words alone are asked for."""
        asked = self._body.timestamp_granularities
        return not asked or "segment" in asked

    def _segments(self, outputs: Sequence[CompletionOutput], silence: Mapping[int, float]) -> list[Spoken]:
        tokenizer = require_tokenizer(self._service.tokenizer, "a transcription")
        assert isinstance(self._speech, SpeechTokens)
        found: list[Spoken] = []
        for number, (output, (first, end)) in enumerate(zip(outputs, self._pieces, strict=True)):
            scores = [next(iter(place.values())).logprob for place in output.logprobs or ()]
            found += segments_of(
                output.token_ids,
                scores,
                self._speech,
                lambda ids: tokenizer.decode(ids, skip_special_tokens=True),
                begin=first / RATE,
                length=(end - first) / RATE,
                silence=silence.get(number),
            )
        return found

    def _told(self, number: int, one: Spoken) -> Segment:
        return {
            "id": number,
            "seek": round(one.seek * 100),
            "start": round(one.begin, 3),
            "end": round(one.end, 3),
            "text": one.text,
            "tokens": list(one.tokens),
            "temperature": self._body.temperature,
            "avg_logprob": one.mean_logprob,
            "compression_ratio": one.compression,
            "no_speech_prob": one.silence,
        }

    def _usage(self) -> DurationUsage:
        return {"type": "duration", "seconds": math.ceil(self._seconds)}
